"""The run folder: one run at a time, however the one before ended, and files that survive a kill."""
from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

from fedmpi.config.schema import resolve
from fedmpi.data.federation import prepare_federation
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.storage.folder import RunFolder
from fedmpi.storage.folder_choice import name_next_folder
from fedmpi.storage.history import read_history
from tests import forked
from tests.storage import test_checkpoint as checkpoints

HERE = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder.claim(tmp_path / "run", resume=False)
    yield folder
    folder.release()


def run(code: str, *args, **environment) -> subprocess.Popen:
    preamble = (f"import sys; sys.path.insert(0, {str(HERE.parent)!r})\n"
                "import numpy as np\nfrom fedmpi.storage.folder import *\n")
    return subprocess.Popen([sys.executable, "-c", preamble + code, *map(str, args)], text=True,
                            env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def leave_lock(path: Path, age: float = 0, **holder) -> dict:
    """Leave the lock of a run on another machine whose last sign of life is `age` seconds old."""
    path.mkdir(parents=True, exist_ok=True)
    holder = {"token": "t", "host": "elsewhere", "pid": 42, "started": "1", "processes": "elsewhere boot",
              "job": None, "restart": 0} | holder
    (path / "lock").write_text(json.dumps(holder))
    os.utime(path / "lock", (time.time() - age,) * 2)
    return holder


def test_a_claimed_folder_is_ready(tmp_path):
    folder = RunFolder.claim(tmp_path / "a" / "b", resume=False)
    assert folder.checkpoints.is_dir() and folder.log_path.parent == folder.path and folder.taken_over is None
    folder.release()
    assert not [path for path in folder.path.iterdir() if path.is_file()]


@pytest.mark.parametrize("left", ["config.yaml", "result.json", "checkpoints/round-000003.h5"])
def test_a_used_folder_needs_resume(tmp_path, left):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "log.txt").write_text("")
    (tmp_path / left).write_text("")
    with pytest.raises(BadInput, match="already holds a run; .*--resume auto, or choose another --out"):
        RunFolder.claim(tmp_path, resume=False)
    RunFolder.claim(tmp_path, resume=True).release()


def test_what_cannot_be_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/fedmpi")):
        with pytest.raises(BadInput, match=f"run folder {path} cannot be written: .*another --out"):
            RunFolder.claim(path, resume=False)


@pytest.mark.parametrize("write", [
    lambda folder: folder.append_metrics([{}]), lambda folder: folder.finish({}, []),
    lambda folder: folder.store_config({}), lambda folder: folder.store_clients(""),
    lambda folder: folder.save_history(),
    lambda folder: folder.rewrite_metrics([])])
def test_a_run_that_lost_its_folder_writes_no_more(folder, write):
    leave_lock(folder.path)
    with pytest.raises(FedmpiError, match="no longer locked by this run"):
        write(folder)
    folder.release()
    assert (folder.path / "lock").exists() and not (folder.path / "result.json").exists()


def test_the_small_files(folder):
    folder.store_config({"seed": 1, "data": {"name": "digits"}, "train": {"lr": 1e-5}})
    assert list(yaml.safe_load((folder.path / "config.yaml").read_text())) == ["seed", "data", "train"]
    for round in range(3):
        folder.append_metrics([{"round": round, "loss": float("nan"), "accuracy": np.float32(.5)}])
    path = folder.path / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"round": round, "loss": None, "accuracy": .5} for round in range(3)]
    path.write_text(path.read_text() + '{"rou')
    folder.rewrite_metrics(lines[:2])
    folder.append_metrics([{"round": 9}])
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [0, 1, 9]


def test_the_mark_of_a_finished_run(folder):
    folder.finish({"accuracy": np.float64("nan"), "each": np.array([1., np.inf]), "rounds": np.int64(3)}, [])
    path = folder.path / "result.json"
    assert json.loads(path.read_text()) == {"accuracy": None, "each": [1., None], "rounds": 3}
    folder.remove_result()
    folder.remove_result()
    assert not path.exists()


@pytest.mark.parametrize("mask", [0o002, 0o077])
def test_files_are_for_whom_the_users_umask_says(tmp_path, mask):
    def write_all():
        os.umask(mask)
        folder = RunFolder.claim(tmp_path / "run", False)
        folder.store_config({})
        folder.append_metrics([{}])
        folder.append_history(1, {"accuracy": np.ones(3)})
        folder.save_history()
        checkpoints.write_checkpoint(folder.checkpoints, checkpoints.snapshot(), checkpoints.pieces())
        prepare_federation(resolve({"data": {"partition": "iid", "cache": str(tmp_path / "run")}}).data, 0)
    done = forked.call(1, write_all)
    assert done.returncode == 0, done.stderr
    # expected modes of folders (True) and of files
    expected = {True: 0o777 & ~mask, False: 0o666 & ~mask}
    found = sorted((tmp_path / "run").rglob("*"))
    assert len(found) == 7 and all(path.stat().st_mode & 0o777 == expected[path.is_dir()] for path in found)


def test_what_others_lock_can_be_read(folder):
    folder.append_history(1, measures(1))
    folder.save_history()
    path = folder.path / "history.h5"
    with open(path, "r+b") as held:
        # Some file systems never free locks.
        fcntl.flock(held, fcntl.LOCK_EX)
        assert read_history(path)["round"].tolist() == [1]
        folder.append_history(2, measures(2))
        folder.save_history()
    assert read_history(path)["round"].tolist() == [1, 2]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a device that is always full")
def test_a_full_disk_is_named(folder):
    (folder.path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(FedmpiError, match="metrics.jsonl cannot be written: No space left on device; free"):
        folder.append_metrics([{"round": 1}])


def test_default_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [str(name_next_folder("c/quick.yaml", resume)) for resume in (False, True)] == ["runs/quick-001"] * 2
    for name in ("quick-001", "quick-009", "quick-x-011", "quick-old", "other-020"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert str(name_next_folder("c/quick.yaml", resume=False)) == "runs/quick-010"
    assert str(name_next_folder("c/quick.yaml", resume=True)) == "runs/quick-009"
    # a try that only left its log is not a run to continue
    (tmp_path / "runs" / "quick-001" / "config.yaml").touch()
    assert str(name_next_folder("c/quick.yaml", resume=True)) == "runs/quick-001"
    assert str(name_next_folder("c/quick.yaml", resume=False)) == "runs/quick-010"


def measures(round: int) -> dict:
    return {"accuracy": np.arange(3.) + round, "samples": np.arange(3) * round}


def test_history_grows_and_is_cut(folder):
    for rounds in ([1, 2], [4], []):
        for round in rounds:
            folder.append_history(round, measures(round))
        folder.save_history()
    folder.append_history(5, {"late": np.ones(3, np.float32)})
    folder.finish({}, [])
    found = read_history(folder.path / "history.h5")
    assert found["round"].tolist() == [1, 2, 4, 5] and found["accuracy"][2].tolist() == [4, 5, 6]
    assert np.isnan(found["accuracy"][3]).all() and np.isnan(found["late"][:3]).all()
    assert found["late"].dtype == np.float32 and found["samples"].dtype.kind == "i"
    folder.append_history(6, measures(6))
    assert folder.truncate_history(3) is None
    folder.append_history(4, measures(4))
    folder.save_history()
    found = read_history(folder.path / "history.h5")
    assert found["round"].tolist() == [1, 2, 4] and np.isnan(found["late"]).all()


def test_history_is_not_cut_where_there_is_none(folder):
    assert folder.truncate_history(3) is None and not (folder.path / "history.h5").exists()


def test_a_damaged_history_is_put_aside(folder):
    folder.append_history(1, measures(1))
    folder.save_history()
    path = folder.path / "history.h5"
    path.write_bytes(path.read_bytes()[:1000])
    assert "history.h5 is damaged" in folder.truncate_history(1)
    assert path.with_name("history-damaged.h5").exists()
    folder.append_history(2, measures(2))
    folder.save_history()
    with h5py.File(path) as file:
        assert file["round"][:].tolist() == [2]


def test_a_failure_while_history_grows_leaves_it_whole(folder):
    folder.append_history(1, measures(1))
    folder.save_history()
    before = (folder.path / "history.h5").read_bytes()
    folder.append_history(2, {"accuracy": np.ones(7)})
    with pytest.raises((TypeError, ValueError)):
        folder.save_history()
    assert (folder.path / "history.h5").read_bytes() == before


GROWING = """
folder = RunFolder.claim(sys.argv[1], True)
for round in range(10**6):
    folder.append_history(round, {"accuracy": np.full(50, float(round))})
    folder.save_history()
    print(round, flush=True)
"""


@pytest.mark.parametrize("rounds", [1, 7, 40])
def test_a_kill_leaves_a_whole_history(tmp_path, rounds):
    process = run(GROWING, tmp_path)
    while process.stdout.readline() != f"{rounds}\n":
        assert process.poll() is None
    process.kill()
    process.wait()
    found = read_history(tmp_path / "history.h5")
    assert found["round"].tolist() == [*range(len(found["round"]))] and len(found["round"]) > rounds
    assert (found["accuracy"] == found["round"][:, None]).all()


def test_a_refused_run_leaves_nothing_behind_that_is_empty(tmp_path):
    RunFolder.claim(tmp_path / "new", resume=False).withdraw()
    assert not (tmp_path / "new").exists()
    (tmp_path / "there").mkdir()
    RunFolder.claim(tmp_path / "there", resume=False).withdraw()
    assert (tmp_path / "there").exists()
    folder = RunFolder.claim(tmp_path / "log", resume=False)
    folder.log_path.write_text("said")
    folder.withdraw()
    assert folder.log_path.exists()


def test_who_claims_a_folder_that_is_given_up_has_all_of_it(tmp_path, monkeypatch):
    first = RunFolder.claim(tmp_path / "run", resume=False)
    release, later = first.release, []
    monkeypatch.setattr(first, "release", lambda: (release(), later.append(RunFolder.claim(first.path, False))))
    first.withdraw()
    assert later[0].checkpoints.is_dir() and later[0].lock.held()
    later[0].release()


NO_FILES = {"pipe": os.mkfifo, "folder": lambda path: path.mkdir(), "link": lambda path: path.symlink_to("nowhere"),
            "device": lambda path: path.symlink_to("/dev/full")}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", ["log.txt", "config.yaml", "clients.csv", "metrics.jsonl", "result.json",
                                  "history.h5"])
def test_what_is_no_file_of_a_run_is_refused_without_waiting_and_stays(tmp_path, name, kind):
    NO_FILES[kind](tmp_path / name)
    # A log may go to /dev/null.
    if (name, kind) == ("log.txt", "device"):
        RunFolder.claim(tmp_path, resume=True).release()
        return
    before = (tmp_path / name).lstat()
    with pytest.raises(BadInput, match=f"{name} is in the place of a file of the run, and is not a regular file"):
        RunFolder.claim(tmp_path, resume=True)
    assert (tmp_path / name).lstat().st_ino == before.st_ino and not (tmp_path / "lock").exists()


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_names_that_no_folder_can_have(tmp_path, name):
    with pytest.raises(BadInput, match="cannot be written: .*another --out") as error:
        RunFolder.claim(tmp_path / name, resume=False)
    assert len(str(error.value)) < 250


def test_a_folder_whose_checkpoints_are_no_folder_is_not_kept_locked(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(BadInput, match="checkpoints cannot be made: File exists"):
        RunFolder.claim(tmp_path, resume=True)
    assert not (tmp_path / "lock").exists()


def test_a_log_that_is_a_link_to_another_file_is_refused(tmp_path):
    """A folder of somebody else could let the run write into a file of yours."""
    (tmp_path / "victim").write_text("a file of the user")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.txt").symlink_to(tmp_path / "victim")
    with pytest.raises(BadInput, match=f"log.txt is a link to another file, {tmp_path}/victim, which would grow"):
        RunFolder.claim(tmp_path / "run", resume=True)
    assert (tmp_path / "victim").read_text() == "a file of the user" and not (tmp_path / "run" / "lock").exists()
