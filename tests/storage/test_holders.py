"""What a lock holds about its holder, and why a holder counts as dead."""
from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedmpi.data import abandoned
from fedmpi.storage import lock

ME = {"processes": "here", "job": "7", "cluster": "alpha", "restart": 2}
OTHER = {"processes": "there", "job": "5", "cluster": "alpha", "restart": 0, "pid": 1, "started": "9"}


@pytest.mark.parametrize("holder, me, silence, why, asked", [
    ({"processes": "here"}, {}, 1e9, None, []),      # the process runs, however silent it is
    ({"processes": "here", "started": "8"}, {}, 0, "that process is gone", []),
    ({"job": "7", "restart": 1}, {}, 0, "its job was started again", []),
    ({"job": "7", "restart": 2}, {}, 59.9, None, []),      # the same start, so Slurm is not asked
    ({"job": "7", "restart": 3}, {}, 59.9, None, []),
    ({"job": "7", "restart": 2}, {}, 60, "no sign of life for 60 s", []),
    ({"job": "over"}, {}, 0, "its job has ended", ["over"]), ({}, {}, 0, None, ["5"]),
    ({"job": "over", "cluster": "beta"}, {}, 59, None, []),      # another cluster's job 7 is not ours
    ({"job": "over", "cluster": None}, {"cluster": None}, 59, None, []),
    ({"job": None}, {}, 59, None, []), ({"job": None}, {"job": None}, 75.6, "no sign of life for 76 s", []),
    ({"job": "over"}, {"job": None}, 0, "its job has ended", ["over"])])
def test_why_a_holder_counts_as_dead(monkeypatch, holder, me, silence, why, asked):
    questions = []
    monkeypatch.setattr(lock, "has_ended", lambda job: questions.append(job) or job == "over")
    monkeypatch.setattr(lock, "read_start_mark", lambda pid: {1: "9"}[pid])
    assert lock.find_why_dead(OTHER | holder, ME | me, silence) == why
    assert questions == asked


def test_an_unknown_holder_is_judged_by_its_silence_alone(monkeypatch):
    monkeypatch.setattr(lock, "has_ended", None)
    assert lock.find_why_dead({}, ME, 59) is None and lock.find_why_dead({}, ME, 60) == "no sign of life for 60 s"


def test_what_a_lock_says_of_its_holder(monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    me = lock.describe_this_process()
    assert (me["job"], me["cluster"], me["restart"]) == (None, None,
                                                         0) and me["token"] != lock.describe_this_process()["token"]
    assert (me["host"], me["pid"]) == (socket.gethostname(), os.getpid()) and me["processes"].split()[0] == me["host"]
    assert lock.describe_holder(me) == f"pid {os.getpid()} on {socket.gethostname()}"
    monkeypatch.setenv("SLURM_JOB_ID", "31")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "alpha")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    me = lock.describe_this_process()
    assert (me["job"], me["cluster"], me["restart"]) == ("31", "alpha",
                                                         2) and lock.describe_holder(me).endswith(" (job 31)")
    assert lock.describe_holder({}) == "an unknown process"


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="reads /proc")
def test_when_a_process_started():
    """It is the 22nd of 52 fields of a line, whatever characters the process's name has."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; open('/proc/self/comm', 'w').write('a) Z (b'); "
                              "print(flush=True); sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    assert lock.read_start_mark(child.pid) == Path(f"/proc/{child.pid}/stat").read_text().split()[-31]
    assert Path(f"/proc/{child.pid}/comm").read_text() == "a) Z (b\n"
    child.stdin.close()
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(.01)
    # The child is a zombie.
    assert lock.read_start_mark(child.pid) is None
    child.wait()
    assert lock.read_start_mark(child.pid) is None


def test_without_a_proc_a_process_is_asked_whether_it_is_there(monkeypatch):
    monkeypatch.setattr(lock, "Path", lambda path: Path(f"/nowhere{path}"))
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert lock.read_start_mark(os.getpid()) == "running" and lock.read_start_mark(child.pid) is None

    def forbidden(pid, signal):
        raise PermissionError
    monkeypatch.setattr(os, "kill", forbidden)
    assert lock.is_process_running(1)


def test_a_process_that_proc_hides_is_not_gone(tmp_path, monkeypatch):
    """As those of other users are on login nodes (hidepid). It may have a reused pid, so its silence counts."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(lock, "Path", lambda path: Path(
        "/nowhere" if path == f"/proc/{child.pid}/stat" else path))
    me = lock.describe_this_process()
    holder, unfinished = me | {"pid": child.pid, "started": "9"}, tmp_path / (
        f"digits.h5.{abandoned.read_machine_code()}-{child.pid}-x.tmp")
    unfinished.touch()
    assert lock.find_why_dead(holder, me, 59) is None
    assert lock.find_why_dead(holder, me, 60) == "no sign of life for 60 s"
    (path := tmp_path / "lock").write_text(json.dumps(holder | {"token": "x", "host": "n1"}))
    assert lock.describe_dead_holder(tmp_path) == ""
    os.utime(path, (0, 0))
    assert lock.describe_dead_holder(tmp_path).endswith(" s") and "no sign of life for " in (
        lock.describe_dead_holder(tmp_path))
    abandoned.remove_abandoned(tmp_path)
    assert unfinished.exists()
    child.stdin.close()
    child.wait()
    assert lock.find_why_dead(holder, me, 0) == "that process is gone"
    abandoned.remove_abandoned(tmp_path)
    assert not unfinished.exists() and lock.read_start_mark(10 ** 30) is None
