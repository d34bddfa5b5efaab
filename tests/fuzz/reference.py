"""Undamaged runs, with which those of the cases are compared."""
from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests import forked

CONFIG = {"rounds": 2, "method": {"name": "ditto", "lam": .1}, "model": {"name": "mlp", "hidden": 4},
          "data": {"name": "arrays", "file": "few.npz", "clients": 5, "cache": "cache"},
          "train": {"steps": 2, "lr": .05}, "checkpoint": {"every": 1, "keep": 3, "grace": 1}, "engine": "loop",
          "device": "cpu"}
JOB = {"title": "a job", "config": "c.yaml", "rows": {"Ditto": "ditto", "FedAvg": "fedavg"}, "columns": {"one": {}},
       "set": {"rounds": 1}, "measure": "accuracy_best_on_test", "published": {"FedAvg": {"one": 30.}}}
ROUNDS = 3


@dataclass
class Reference:
    """A folder with a configuration, data, a run of two rounds (`run`) and another one (`other`), and what is promised.

    All paths in it are relative, so that a copy of the folder can go on."""
    folder: Path
    # digests after two and after three rounds
    digests: tuple[str, str] = ("", "")
    exported: str = ""
    history: str = ""


def make_reference(folder: Path) -> Reference:
    """Run what the cases need. It takes two seconds."""
    folder.mkdir(parents=True)
    write_few(folder / "few.npz")
    (folder / "c.yaml").write_text(json.dumps(CONFIG))
    (folder / "job.yaml").write_text(json.dumps(JOB))
    for words in (["run", "c.yaml", "--out", "run"], ["run", "c.yaml", "--out", "other", "seed=1", "rounds=1"],
                  ["run", "c.yaml", "--out", "three", f"rounds={ROUNDS}"],
                  ["export", "run", "good.safetensors", "--client", "1"]):
        done = forked.command(1, *words, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
    return Reference(folder, (digest_of_run(folder / "run"), digest_of_run(folder / "three")),
                     hash_of_file(folder / "good.safetensors"), hash_of_history(folder / "three"))


def write_few(path: Path) -> None:
    """Write 120 digits that say which of four clients holds them."""
    from tests.federations import pool
    x, y, *_ = pool()
    np.savez(path, x_train=x[:90], y_train=y[:90], x_test=x[90:120], y_test=y[90:120],
             client_train=np.arange(90) % 4, client_test=np.arange(30) % 4)


def digest_of_run(folder: Path) -> str:
    """Return the digest in result.json."""
    return json.loads((folder / "result.json").read_text())["digest"]


def hash_of_file(path: Path) -> str:
    """Return the sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hash_of_history(folder: Path) -> str:
    """Return the sha256 of all measures in the history of a run, as the package reads it."""
    from fedmpi.storage.history import read_history
    found, total = read_history(folder / "history.h5"), hashlib.sha256()
    for name in sorted(found):
        total.update(name.encode() + np.ascontiguousarray(found[name]).tobytes())
    return total.hexdigest()
