"""One run at a time in a folder, whatever became of the one before: real processes, real dead ones."""
from __future__ import annotations

import json
import os
import signal
import socket
import time

import pytest

from fedmpi.errors import BadInput
from fedmpi.storage import lock
from fedmpi.storage.folder import RunFolder
from tests.storage.test_folder import leave_lock, run


def test_a_live_run_keeps_its_folder(tmp_path):
    process = run("folder = RunFolder.claim(sys.argv[1], False); print('held', flush=True); input()",
                  tmp_path)
    assert process.stdout.readline() == "held\n"
    os.utime(tmp_path / "lock", (0, 0))         # a stopped process is silent, yet it lives
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
    leave_lock(tmp_path, **{**lock.myself(), "token": "t", "started": "before"})
    assert "process is gone" in RunFolder.claim(tmp_path, resume=True).taken_over


def test_another_machine_is_judged_by_its_signs_of_life(tmp_path):
    leave_lock(tmp_path, age=4, job="77")
    with pytest.raises(BadInput, match=r"pid 42 on elsewhere \(job 77\), last sign of life 4 s ago; wait"):
        RunFolder.claim(tmp_path, resume=True)
    leave_lock(tmp_path, age=61)
    folder = RunFolder.claim(tmp_path, resume=True)
    assert folder.taken_over == "pid 42 on elsewhere left the folder locked: no sign of life for 61 s"
    assert folder.lock.held()


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
    judge = lock.why_dead

    def slowly(holder, *rest):
        why = judge(holder, *rest)
        if holder["token"] == "t":
            leave_lock(tmp_path, token="faster")
        return why

    monkeypatch.setattr(lock, "why_dead", slowly)
    with pytest.raises(BadInput, match="in use by pid 42"):
        RunFolder.claim(tmp_path, resume=True)
    assert [lock.holder_of(path)["token"] for path in tmp_path.glob("lock*")] == ["faster"]


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
    monkeypatch.setattr(lock, "BEAT", .01)
    folder = RunFolder.claim(tmp_path, resume=False)
    os.utime(tmp_path / "lock", (0, 0))
    deadline = time.monotonic() + 5
    while (tmp_path / "lock").stat().st_mtime < time.time() - 60:
        assert time.monotonic() < deadline
        time.sleep(.01)
    folder.release()
