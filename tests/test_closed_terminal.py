"""Runs and sweeps whose terminal is closed under them (SIGHUP), as when a connection is lost: they save and stop."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from fedmpi.storage.run_status import read_outcome
from tests.launch import BUFFERED
from tests.sweeps import jobs

pytestmark = [pytest.mark.slow("jobs that are killed, hang or wait"),
              pytest.mark.skipif(sys.version_info < (3, 11) or sys.platform == "win32", reason="needs os.login_tty")]


def close_terminal_under(words: list[str], begun, handler=signal.SIG_DFL) -> subprocess.Popen[bytes]:
    """Run fedmpi on a terminal of its own, and close that as soon as a path exists; `handler` is that of SIGHUP."""
    terminal, end = os.openpty()

    def enter() -> None:
        signal.signal(signal.SIGHUP, handler)
        os.login_tty(end)
    job = subprocess.Popen([sys.executable, "-m", "fedmpi", *words], preexec_fn=enter, pass_fds=[end],
                           stdin=end, stdout=end, stderr=end, env=BUFFERED)
    os.close(end)
    os.set_blocking(terminal, False)
    give_up = time.monotonic() + 120
    while not begun.exists():
        assert job.poll() is None and time.monotonic() < give_up
        try:
            # A terminal that nobody reads is full soon.
            os.read(terminal, 1 << 16)
        except BlockingIOError:
            time.sleep(.05)
    os.close(terminal)
    return job


@pytest.fixture
def job_file(tmp_path, cache) -> str:
    return jobs.write(tmp_path, cache, columns={"one": {}}, published={})


def test_a_run_without_its_terminal_saves_and_stops(tmp_path, job_file):
    out = tmp_path / "run"
    words = ["run", str(tmp_path / "c.yaml"), "rounds=100000", "--out", str(out)]
    job = close_terminal_under(words, out / "metrics.jsonl")
    assert job.wait(120) == 75
    found = read_outcome(out)
    assert found.state == "unfinished" and found.said.startswith("asked to stop: saved after round ")


def test_a_sweep_without_its_terminal_asks_its_runs_to_save(tmp_path, job_file):
    out = tmp_path / "out"
    job = close_terminal_under(["sweep", job_file, "--scale", "long", "--out", str(out)],
                               out / "fedavg" / "one" / "seed-0" / "metrics.jsonl")
    assert job.wait(120) == 75
    log = (out / "fedavg" / "one" / "seed-0.txt").read_text().splitlines()
    assert log[-1] == "job sweep: stopped with code 75" and log[-2].startswith("asked to stop: saved after round ")
    assert not (out / "local").exists()


def test_under_nohup_a_run_goes_on(tmp_path, job_file):
    out = tmp_path / "run"
    words = ["run", str(tmp_path / "c.yaml"), "rounds=40", "--out", str(out)]
    job = close_terminal_under(words, out / "metrics.jsonl", signal.SIG_IGN)
    assert job.wait(120) == 0 and read_outcome(out).state == "finished"
