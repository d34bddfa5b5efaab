"""docs/file-formats.md explains every key that a run writes, and no other."""
from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedmpi.storage.changed_settings import CHANGEABLE_SETTINGS
from fedmpi.storage.history import read_history
from tests import forked
from tests.docs.pages import ROOT

# Who holds what by turns, with names; a run that uses it notes the hash of this code.
NAMED = """
from dataclasses import dataclass
import numpy as np

@dataclass(frozen=True)
class Named:
    def assign(self, labels, clients, rng):
        return [np.arange(i, len(labels), clients) for i in range(clients)], None

    def name_clients(self):
        return ["north", "south", "west"]
"""
TIMES = "client,begin,end\n0,1,1\n3,1,1\n"
# Runs that together write every key: method -> settings.
RUNS = {
    "fedmhc": ["edge={}", "faults.drop=.2", "faults.bad_update=skip", "attack={kind: label_flip}",
               "evaluate.embeddings=[1]", "stragglers={step_seconds: .1, deadline: 9, late: partial}",
               "train.sampling=loss"],
    "fedcps": ["data.partition={name: few_shot, gamma: .3}"],
    "lcfed": ["method.K=2", "method.D=4"],
    "per_fedavg": ["evaluate.measures=[balanced_accuracy]", "data.new_clients=3"],
    "cfl": [],
    "fedamp": ["data.split=[.6, .2, .2]", "evaluate.after_training=all", "evaluate.measures=[balanced_accuracy]"],
    "fedah": ["method.mix_everyone=true", "train.participation=.5", "availability.file=times.csv"],
    "fedavg": ["data={name: arrays, file: numbers.npz, task: regression, clients: 3, fraction: 1, "
               "partition: named:Named}"]}
# What only GPUs, a disk that is full, and code that was changed between two starts bring.
ELSEWHERE = {"gpus", "gpu_memory_mib", "convolutions", "rounds_refused_by_disk", "accepted_code_changes"}
PAGE = (ROOT / "docs" / "file-formats.md").read_text()


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> set[str]:
    """The keys that the runs have written."""
    folder, found = tmp_path_factory.mktemp("keys"), set()
    (folder / "named.py").write_text(NAMED)
    (folder / "times.csv").write_text(TIMES)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    np.savez(folder / "numbers.npz", x_train=x, y_train=x.sum(1))
    for method, settings in RUNS.items():
        done = forked.command(1, "run", str(ROOT / "configs" / "quickstart.yaml"), f"method={method}", "rounds=1",
                              "data.clients=12", "model.hidden=8", *settings, "--out", method, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        found |= read_keys(folder / method)
    return {key.replace("balanced_accuracy", "NAME") for key in found}


def read_keys(run: Path) -> set[str]:
    """Return the keys of a run's measures, result and history, and the columns of its clients."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return {*(run / "clients.csv").read_text().splitlines()[0].split(","),
            *json.loads((run / "result.json").read_text()), *read_history(run / "history.h5"),
            *(key for line in lines for key in json.loads(line))}


def list_explained() -> set[str]:
    """Return the keys in the first cells of the page's tables."""
    part = PAGE[PAGE.index("### metrics.jsonl"):PAGE.index("### Checkpoints")]
    cells = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    return set(re.findall(r"`(\w+)`", " ".join(cells)))


def list_names(key: str) -> set[str]:
    """Return the names under which a page may explain a key: its own; without its ending, which has a row of its own;
    and that of the measure of classes in place of the one of numbers."""
    plain = re.sub("_(after|unadapted|validation)$", "", key)
    return {key, plain, plain.replace("mse", "accuracy").replace("mae", "f1")}


def test_every_key_that_a_run_writes_is_explained(written):
    explained = list_explained()
    assert {key for key in written if not list_names(key) & explained} == set()
    assert {key for key in CHANGEABLE_SETTINGS if f"`{key}`" not in PAGE} == set()


def test_every_key_that_is_explained_is_written(written):
    assert list_explained() - written == ELSEWHERE
