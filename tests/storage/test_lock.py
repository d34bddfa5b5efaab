"""One run at a time in a folder, however the one before ended, with real processes, alive and dead."""
from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import threading
import time

import pytest

from fedmpi.errors import BadInput
from fedmpi.storage import lock
from fedmpi.storage.folder import RunFolder
from tests.storage.test_folder import leave_lock, run


@pytest.fixture
def clock(monkeypatch):
    """Stop the clock of the file system; return its time."""
    now, probe = 1_000_000_000, tempfile.TemporaryFile

    def stamped(**where):
        file = probe(**where)
        os.utime(file.fileno(), (now, now))
        return file
    monkeypatch.setattr(lock.tempfile, "TemporaryFile", stamped)
    return now


def test_a_live_run_keeps_its_folder(tmp_path):
    process = run("folder = RunFolder.claim(sys.argv[1], False); print('held', flush=True); input()",
                  tmp_path)
    assert process.stdout.readline() == "held\n"
    # A stopped process is silent but alive.
    os.utime(tmp_path / "lock", (0, 0))
    with pytest.raises(BadInput, match=f"in use by pid {process.pid} on {socket.gethostname()}, last sign"):
        RunFolder.claim(tmp_path, resume=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    folder = RunFolder.claim(tmp_path, resume=True)
    assert f"pid {process.pid} on" in folder.taken_over and "process is gone" in folder.taken_over
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "checkpoints"}
    folder.release()


def test_a_zombie_does_not_hold_a_folder(tmp_path):
    process = run("import os; folder = RunFolder.claim(sys.argv[1], False); os._exit(0)", tmp_path)
    process.stdout.read()
    RunFolder.claim(tmp_path, resume=True).release()
    process.wait()


def test_a_reused_pid_does_not_hold_a_folder(tmp_path):
    leave_lock(tmp_path, **{**lock.describe_this_process(), "token": "t", "started": "before"})
    assert "process is gone" in RunFolder.claim(tmp_path, resume=True).taken_over


@pytest.mark.parametrize("age", [-30, 0, 4, 59])
def test_another_machine_is_left_its_folder_while_it_gives_signs_of_life(tmp_path, clock, age):
    """This holds also if its clock is ahead of the file system's."""
    leave_lock(tmp_path, job="77")
    os.utime(tmp_path / "lock", (clock - age,) * 2)
    before = (tmp_path / "lock").read_bytes()
    with pytest.raises(BadInput, match=f"run folder {tmp_path} is in use by pid 42 on elsewhere .job 77., last sign of "
                                       f"life {max(age, 0)} s ago; wait for that run, stop it or choose another --out"):
        RunFolder.claim(tmp_path, resume=True)
    assert (tmp_path / "lock").read_bytes() == before and (tmp_path / "lock").stat().st_mtime == clock - age
    assert [path.name for path in tmp_path.glob("lock*")] == ["lock"] and lock.is_run_alive(tmp_path)


@pytest.mark.parametrize("age", [60, 61, 3600, -86400])
def test_the_folder_of_another_machine_that_is_silent_is_inherited(tmp_path, clock, age):
    leave_lock(tmp_path)
    os.utime(tmp_path / "lock", (clock - age,) * 2)
    assert not lock.is_run_alive(tmp_path)
    folder = RunFolder.claim(tmp_path, resume=True)
    assert folder.taken_over == f"pid 42 on elsewhere left the folder locked: no sign of life for {abs(age)} s"
    assert folder.lock.held()
    folder.release()


def test_several_signs_of_life_may_be_lost_before_a_holder_counts_as_dead():
    """docs/file-formats.md has these values; other versions of fedmpi that run beside this one depend on them."""
    assert (lock.LOCK_BEAT_S, lock.MAX_SILENCE_S) == (10, 60) and lock.MAX_SILENCE_S >= 5 * lock.LOCK_BEAT_S


@pytest.mark.parametrize("job, restart, free", [("77", "1", True), ("77", "0", False), ("78", "1", False)])
def test_a_requeued_job_follows_itself(tmp_path, monkeypatch, job, restart, free):
    leave_lock(tmp_path, age=1, job="77")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_RESTART_COUNT", restart)
    if free:
        assert "started again" in RunFolder.claim(tmp_path, resume=True).taken_over
    else:
        with pytest.raises(BadInput, match="in use"):
            RunFolder.claim(tmp_path, resume=True)


@pytest.mark.parametrize("text", ["", "[1]", '{"tok'])
def test_a_half_written_lock_counts_for_a_minute(tmp_path, text):
    leave_lock(tmp_path)
    (tmp_path / "lock").write_text(text)
    with pytest.raises(BadInput, match="in use by an unknown process"):
        RunFolder.claim(tmp_path, resume=True)
    os.utime(tmp_path / "lock", (0, 0))
    assert "an unknown process" in RunFolder.claim(tmp_path, resume=True).taken_over


def test_an_heir_that_died_is_inherited_from(tmp_path):
    leave_lock(tmp_path, age=99, token="second")
    (tmp_path / "lock").rename(tmp_path / "lock-first")
    leave_lock(tmp_path, age=99, token="first")
    folder = RunFolder.claim(tmp_path, resume=True)
    assert folder.lock.held() and [path.name for path in tmp_path.glob("lock*")] == ["lock"]


def test_an_heir_that_comes_late_takes_nothing(tmp_path, monkeypatch):
    leave_lock(tmp_path, age=99)
    judge = lock.find_why_dead

    def slowly(holder, *rest):
        why = judge(holder, *rest)
        if holder["token"] == "t":
            leave_lock(tmp_path, token="faster")
        return why

    monkeypatch.setattr(lock, "find_why_dead", slowly)
    with pytest.raises(BadInput, match="in use by pid 42"):
        RunFolder.claim(tmp_path, resume=True)
    assert [lock.read_holder(path)["token"] for path in tmp_path.glob("lock*")] == ["faster"]


RACE = """
input()
won = []
for i in range(30):
    try:
        won.append((i, RunFolder.claim(f"{sys.argv[1]}/{i}", True)))
    except BadInput:
        pass
print([i for i, folder in won], flush=True)
input()
print(all(folder.lock.held() for i, folder in won))
"""


def test_of_many_claims_at_once_exactly_one_wins(tmp_path):
    for i in range(0, 30, 2):
        leave_lock(tmp_path / str(i), age=99)
    racers = [run(RACE, tmp_path) for _ in range(4)]
    for racer in racers:
        print(file=racer.stdin, flush=True)
    won = [json.loads(racer.stdout.readline()) for racer in racers]
    assert sorted(sum(won, [])) == [*range(30)], won
    assert [racer.communicate("\n")[0] for racer in racers] == ["True\n"] * 4


def test_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "LOCK_BEAT_S", .01)
    folder = RunFolder.claim(tmp_path, resume=False)
    os.utime(tmp_path / "lock", (0, 0))
    # Wait for a minute at most, as the machine may be busy.
    for _ in range(6000):
        if (tmp_path / "lock").stat().st_mtime:
            break
        time.sleep(.01)
    else:
        raise AssertionError("no sign of life")
    folder.release()


class Beats:
    """Stands for the event that ends a lock's thread, and lets so many beats pass; `before` acts before each."""

    def __init__(self, count: int, before=lambda: None):
        self.count, self.before, self.waits = count, before, []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.before()
        return len(self.waits) > self.count


@pytest.fixture
def held(tmp_path, monkeypatch):
    """A lock of this process without its thread; tests call `beat`."""
    monkeypatch.setattr(lock.threading.Thread, "start", lambda thread: None)
    return lock.Lock(tmp_path)


def test_each_beat_is_a_sign_of_life(held):
    ages = []

    def before():
        ages.append(held.path.stat().st_mtime > 0)
        os.utime(held.path, (0, 0))
    held.ended = Beats(2, before)
    held.beat()
    # Looks before the first beat, and after two.
    assert ages == [True] * 3 and held.ended.waits == [10, 10, 10]


def test_the_lock_of_another_run_is_never_touched(held):
    """It is not removed either, neither by signs of life nor at the end."""
    leave_lock(held.path.parent, token="another")
    os.utime(held.path, (5, 5))
    held.ended, before = Beats(3), held.path.read_bytes()
    held.beat()
    held.ended = threading.Event()
    held.release()
    assert held.path.stat().st_mtime == 5 and held.path.read_bytes() == before and held.ended.is_set()


def test_a_lock_that_is_gone_or_cannot_be_touched_ends_no_thread(held, monkeypatch):
    held.ended = Beats(2, lambda: held.path.unlink(missing_ok=True))
    held.beat()
    assert not held.path.exists() and not held.held()

    def refused(path):
        raise PermissionError
    monkeypatch.setattr(os, "utime", refused)
    held.path.write_text(json.dumps(held.me))
    held.ended = Beats(2)
    held.beat()
    assert len(held.ended.waits) == 3


def test_a_released_lock_is_gone_and_its_thread_with_it(tmp_path):
    ours = lock.Lock(tmp_path)
    assert json.loads(ours.path.read_text()) == ours.me and ours.held() and not ours.ended.is_set()
    ours.release()
    assert ours.ended.is_set() and not ours.path.exists() and ours.taken_over is None
    assert not lock.is_run_alive(tmp_path)


def test_a_lock_that_a_full_disk_refuses_is_not_left_empty(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left")
    monkeypatch.setattr(lock.json, "dump", full)
    with pytest.raises(OSError):
        lock.create_lock(tmp_path / "lock", {})
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/nowhere/at/all", path),
                                  lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_lock_is_refused_without_waiting_and_stays(tmp_path, make):
    make(tmp_path / "lock")
    before = os.lstat(tmp_path / "lock")
    with pytest.raises(BadInput, match="lock is not the lock of a run, but a link, a folder, a pipe or a device"):
        RunFolder.claim(tmp_path, resume=True)
    assert os.lstat(tmp_path / "lock") == before and not lock.is_run_alive(tmp_path)


WHOLE = {"token": "t", "host": "h", "pid": 1, "started": "1", "processes": "p", "job": None, "restart": 0}


@pytest.mark.parametrize("text", [
    "", "5", "[]", "[" * 100_000, "\0", *(json.dumps({**WHOLE, key: value}) for key, value in (
        ("token", "../../x"), ("token", None), ("token", "t" * 65), ("pid", "x"), ("pid", None), ("restart", "x"),
        ("processes", 5), ("job", [1]))), *(json.dumps({k: v for k, v in WHOLE.items() if k != key})
                                            for key in ("token", "pid", "restart", "started"))], ids=range(17))
def test_a_damaged_lock_is_that_of_an_unknown_process(tmp_path, text):
    """It counts as held while it is fresh, and as left behind after a minute of silence."""
    path = tmp_path / "lock"
    path.write_text(text)
    assert lock.read_holder(path) == {}
    with pytest.raises(BadInput, match="is in use by an unknown process"):
        RunFolder.claim(tmp_path, resume=True)
    os.utime(path, (time.time() - 99,) * 2)
    folder = RunFolder.claim(tmp_path, resume=True)
    assert folder.taken_over.startswith("an unknown process left the folder locked: no sign of life")
    folder.release()
    assert not path.exists()
