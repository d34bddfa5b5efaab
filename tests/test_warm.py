"""A warm Python behaves like a new one: its code, output, folder, environment, signals and end are the same."""
from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import launch
from tests.runs import wait_for

LONG = ("run", "configs/quickstart.yaml", "rounds=100000", "evaluate.every=0")


def start(warm, *words, **more) -> subprocess.Popen:
    return subprocess.Popen([warm, "-m", "fedmpi", *words], cwd=launch.ROOT, env=launch.ENVIRONMENT | more, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow("new processes")
def test_it_says_and_returns_what_a_new_process_does(warm):
    for words in (["--version"], ["partitions", "dirichlet"], ["fly"]):
        command = ["-m", "fedmpi", *words]
        found, expected = (subprocess.run([python, *command], cwd=launch.ROOT, env=launch.ENVIRONMENT, text=True,
                                          capture_output=True) for python in (warm, sys.executable))
        assert (found.returncode, found.stdout, found.stderr) == (
            expected.returncode, expected.stdout, expected.stderr)
    other = subprocess.run([warm, "-c", "import sys; print('torch' in sys.modules)"], text=True, capture_output=True)
    # A command without -m runs in a new process.
    assert other.stdout == "False\n"


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 75), (signal.SIGKILL, -signal.SIGKILL)])
def test_it_hears_signals_and_dies_with_the_process_that_stands_for_it(warm, tmp_path, number, code):
    job = start(warm, *LONG, f"data.cache={tmp_path}", "--out", str(tmp_path / "run"))
    wait_for(job, "round      1/")
    pid = json.loads((tmp_path / "run" / "lock").read_text())["pid"]
    assert pid != job.pid
    job.send_signal(number)
    job.communicate(timeout=launch.LIMIT)
    assert job.returncode == code
    for _ in range(500):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(.02)
    raise AssertionError(f"{pid} goes on")


def test_what_it_has_started_ends_with_it(tmp_path):
    from tests.warm import python
    with python() as warm:
        job = start(warm, *LONG, f"data.cache={tmp_path}", "--out", str(tmp_path / "run"))
        wait_for(job, "round      1/")
    assert job.wait(launch.LIMIT) != 0
