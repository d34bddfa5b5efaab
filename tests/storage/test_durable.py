"""Every file that must survive is flushed and renamed, and then its folder is flushed.

A recorder notes the system's calls and lets them through, on real files."""
from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from fedmpi.commands import doctor_checks
from fedmpi.config.schema import resolve
from fedmpi.data.federation import prepare_federation
from fedmpi.storage import checkpoint, seal
from fedmpi.storage.atomic import atomic
from fedmpi.storage.checkpoint import write_checkpoint
from fedmpi.storage.folder import RunFolder
from tests.storage.test_checkpoint import pieces, snapshot


def state(path) -> tuple[int, str]:
    """Return which file or folder this is, and what it holds."""
    status = os.stat(path)
    inside = Path(path).read_bytes() if os.path.isfile(path) else b""
    return status.st_ino, hashlib.sha256(inside).hexdigest()


class Recorder:
    """Records in order what is flushed and renamed: ("flushed", state) and ("renamed", state of the file, new path)."""

    def __init__(self, monkeypatch):
        self.events, fsync, replace = [], os.fsync, os.replace

        def flush(descriptor):
            self.events.append(("flushed", state(f"/proc/self/fd/{descriptor}")))
            fsync(descriptor)

        def rename(source, target, **how):
            self.events.append(("renamed", state(source), Path(target)))
            replace(source, target, **how)
        monkeypatch.setattr(os, "fsync", flush)
        monkeypatch.setattr(os, "replace", rename)

    def renamed(self) -> list[Path]:
        """Return the renamed files in order; check that each was flushed as it is before, its folder right after."""
        found = []
        for i, (what, which, *to) in enumerate(self.events):
            if what == "renamed":
                assert ("flushed", which) in self.events[:i], f"{to[0]} was renamed before it was flushed"
                assert self.events[i + 1:i + 2] == [("flushed", state(to[0].parent))], f"the folder of {to[0]}"
                found.append(to[0])
        return found


@pytest.fixture
def recorder(monkeypatch):
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("finds the file of a descriptor in /proc")
    return Recorder(monkeypatch)


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder.claim(tmp_path / "run", resume=False)
    yield folder
    folder.release()


def plain(folder):
    with atomic(folder.path / "model.safetensors") as part:
        part.write_bytes(b"weights")


def history(folder):
    folder.append_history(1, {"accuracy": np.ones(3)})
    folder.save_history()


def cut(folder):
    history(folder)
    folder.truncate_history(0)


def federation(folder):
    prepare_federation(resolve({"data": {"partition": "iid", "cache": str(folder.path)}}).data, 0)


def finish(folder):
    folder.behind = True
    folder.append_history(1, {"accuracy": np.ones(3)})
    folder.finish({"rounds": 1}, [{"round": 1}])


@pytest.mark.parametrize("act, names", [
    (plain, ["model.safetensors"]),
    (lambda folder: folder.store_config({"seed": 1}), ["config.yaml"]),
    (lambda folder: folder.store_clients("client\n0\n"), ["clients.csv"]),
    (lambda folder: folder.rewrite_metrics([{"round": 1}]), ["metrics.jsonl"]),
    (history, ["history.h5"]), (cut, ["history.h5"] * 2), (federation, ["digits-iid-20-*.h5"]),
    (lambda folder: write_checkpoint(folder.checkpoints, snapshot(), pieces()), ["round-000012.h5"]),
    (lambda folder: doctor_checks.write_trial_file(folder.path / "trial.h5"), ["trial.h5"]),
    (finish, ["metrics.jsonl", "history.h5", "result.json"])],      # result.json marks the end, so it comes last
    ids=["file", "config", "clients", "metrics", "history", "cut history", "federation", "checkpoint", "trial",
         "finish"])
def test_a_file_is_flushed_renamed_and_its_folder_flushed(folder, recorder, act, names):
    act(folder)
    found = recorder.renamed()
    assert len(found) == len(names) and all(path.match(name) for path, name in zip(found, names, strict=True)), found


def noting(steps: list, name: str, call):
    def noted(path, *rest):
        steps.append((name, Path(path.name).name))
        return call(path, *rest)
    return noted


def test_a_checkpoint_is_sealed_and_verified_before_it_gets_its_name(folder, recorder, monkeypatch):
    steps = recorder.events
    for name, module in (("put_seal", seal), ("check_checkpoint", checkpoint)):
        monkeypatch.setattr(module, name, noting(steps, name, getattr(module, name)))
    write_checkpoint(folder.checkpoints, snapshot(), pieces())
    assert [step[0] for step in steps] == [
        "put_seal", "flushed", "check_checkpoint", "flushed", "renamed", "flushed"]
    assert steps[0][1] == steps[2][1] == "round-000012.h5.part"


@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_a_run_makes_all_durable_in_an_order_in_which_nothing_is_missing_after_a_cut(bench, recorder, asynchronous):
    """Settings come before the first checkpoint, the history of a round before its checkpoint, the result last."""
    name = f"durable-{asynchronous}"
    assert bench.lead(name, "rounds=2", f"checkpoint.asynchronous={asynchronous}") == 0
    names = [path.name for path in recorder.renamed() if bench.out(name) in path.parents]
    assert names == ["config.yaml", "clients.csv", "metrics.jsonl", "history.h5", "round-000001.h5", "history.h5",
                     "round-000002.h5", "result.json"]


def test_a_resumed_run_cuts_its_metrics_before_it_goes_on(bench, recorder):
    assert bench.lead("resumed", "rounds=1") == 0
    recorder.events.clear()
    assert bench.lead("resumed", "rounds=2", resume="auto") == 0
    names = [path.name for path in recorder.renamed() if bench.out("resumed") in path.parents]
    assert set(names[:3]) == {"config.yaml", "clients.csv", "metrics.jsonl"}
    assert names[3:] == ["history.h5", "round-000002.h5", "result.json"]
