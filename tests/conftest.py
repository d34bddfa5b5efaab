"""What all tests share. Every process has one thread, because the suite starts several processes at once."""
from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("suite", deadline=None, database=None, derandomize=True,
                          suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
pytest_plugins = ["tests.budget"]

from tests.sockets import Package, SocketMPI  # noqa: E402

# Commands that run in this process are alone in their world. A real MPI library, once it is initialised, would stay in
# this process and in its forks (tests/forked.py, tests/warm.py).
sys.modules["mpi4py"] = Package(SocketMPI(0, 1, {}))


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """The folder for the federations that this session prepares."""
    return tmp_path_factory.mktemp("federations")


@pytest.fixture(scope="session")
def mlp():
    """A small network for the digits, whose parameters are in the order of the module."""
    from tests.federations import mlp
    return mlp()


@pytest.fixture(scope="session")
def federation():
    """Real digits on eight clients of different sizes; the smallest has a single training sample."""
    from tests.federations import Digits
    return Digits()


@pytest.fixture(scope="session")
def launch():
    """A function that runs `python -m MODULE ARGUMENTS` on several MPI ranks; see tests/launch.py."""
    from tests.launch import module
    return module


@pytest.fixture
def warm():
    """The path of a Python whose `-m fedmpi` starts at once, for one test; see tests/warm.py."""
    from tests.warm import python
    with python() as path:
        yield path


@pytest.fixture
def fake_sbatch(tmp_path, monkeypatch):
    """Make `put(does)` put a fake sbatch into the path, which writes down its words and runs the given script."""
    def put(does: str):
        (tmp_path / "sbatch").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\n{does}\n')
        (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return put


@pytest.fixture(scope="module")
def bench(tmp_path_factory, cache):
    """A folder in which runs of the real command are started; see tests/runs.py."""
    from tests import launch
    from tests.runs import Bench
    bench = Bench(tmp_path_factory.mktemp("runs"), cache)
    yield bench
    for job in bench.jobs:
        launch.end(job)
