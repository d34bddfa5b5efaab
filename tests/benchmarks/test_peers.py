"""Other frameworks in the benchmark. They are not installed here; a script stands for one."""
from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from benchmarks import cohort, command, peers
from benchmarks.peers.shape import CNN, MARK, Shape
from fedmpi.errors import FedmpiError
from tests import forked

pytestmark = pytest.mark.slow("processes of their own")

SHAPE = Shape(clients=3, samples=7, tests=2, participants=2, batch=4, rounds=2, cores=1, device="cpu", lr=.1)
SMALL = ["clients=2", "samples=4", "participants=1", "rounds=1", "engines=loop"]
STAND_IN = """
import subprocess, sys
from shape import Shape, mark

shape, busy = Shape.told(), "import time\\nwhile time.process_time() < .3: pass\\nprint(flush=True)\\ninput()"
children = []
for _ in range(shape.rounds + 1):
    children += [subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE)]
    children[-1].stdout.readline()
    mark("trained")
    print("a line of the peer's own")
    mark("judged")
for child in children:      # they live to the end, so that nobody has counted their time before
    child.communicate(b"\\n")
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Return a function that makes a script the peer `other`."""
    def make(script: str):
        (tmp_path / "with_other.py").write_text(script)
        monkeypatch.setitem(peers.PEERS, "other", peers.Peer("torch", "torch", str(tmp_path / "with_other.py")))
    return make


@pytest.fixture
def broken(tmp_path):
    """Return a Python that claims to have pfl but has not; its PyTorch is empty, so its import is quick."""
    (tmp_path / "torch" / "nn").mkdir(parents=True)
    for name in ("torch/__init__.py", "torch/nn/__init__.py", "torch/nn/functional.py"):
        (tmp_path / name).touch()
    (tmp_path / "pfl-0.6.0.dist-info").mkdir()
    (tmp_path / "pfl-0.6.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: pfl\nVersion: 0.6.0\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_rounds_are_timed_without_the_first_with_all_processes(stand_in):
    stand_in(STAND_IN)
    found = peers.timed("other", sys.executable, SHAPE)
    assert found.shape == (2, 2, 2) and (found[..., 0] > 0).all()
    # CPU seconds include those of the child, which trains.
    assert (found[:, 0, 1] > found[:, 1, 1]).all()


@pytest.mark.parametrize("script", ["raise SystemExit('it is broken')", f"print('{MARK}\\n' * 4 + 'it is broken')"])
def test_a_peer_that_fails(stand_in, script):
    stand_in(script)
    with pytest.raises(FedmpiError, match=r"(?s)ended with [01] after [02] of 3 rounds; its last words:.*is broken"):
        peers.timed("other", sys.executable, SHAPE)


def test_the_work_is_the_benchmarks():
    (x, y), (again, _), (other, _) = (SHAPE.training(c) for c in (0, 0, 1))
    assert x.shape == (7, 3, 32, 32) and y.shape == (7,) and len(SHAPE.testing()[1]) == 6
    assert torch.equal(x, again) and not torch.equal(x, other) and x.abs().max() <= 1
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert sum(p.numel() for p in CNN().parameters()) == 1_626_442


def test_a_row_counts_a_share_of_an_evaluation():
    # One round with (wall, CPU) seconds of training and of evaluation.
    bare = np.array([[[1., 2.], [10., 10.]]])
    row = cohort.row("somebody", np.array([[[5., 8.], [10., 10.]]] * 3), bare, every=10)
    assert row == {"who": "somebody", "bare_seconds": 2., "seconds": 6., "evaluation_seconds": 10., "ratio": 3.,
                   "cpu_ratio": 3.}


def test_two_ranks_share_the_bare_loop(monkeypatch):
    """Every rank that hosts clients takes its share of participants and test images, the others none."""
    from benchmarks.rig import Rig
    from benchmarks.synthetic import Synthetic
    from fedmpi.comm.transport import Solo
    rig = Rig(Solo(), Synthetic((32, 32, 3), 10, np.full(3, 7)), {"model": f"{Shape.__module__}:CNN"})
    trained, judged = [], []
    monkeypatch.setattr(cohort.Bare, "run", lambda self: trained.append(len(self.samples)))
    monkeypatch.setattr(cohort, "correct", lambda network, x, y: judged.append(len(y)))
    shape = Shape(3, 7, 2, 3, 4, 1, cores=2, device="cpu", lr=.1)
    for place in ([0], [1], []):
        assert len(list(cohort.bare_turn(rig, shape, np.array(place, int))(0))) == 2
    assert trained == [2, 1] and judged == [3, 3]


@pytest.mark.parametrize("setting, message", [
    (f"pfl={sys.executable}", "pfl is not installed there; python3 -m venv pfl-venv && pfl-venv/bin/pip install 'pfl["),
    ("flower=/nowhere/python", "flower = /nowhere/python: No such file or directory; it should be the python in")])
def test_not_installed(setting, message, capsys):
    assert command.run_benchmark("cohort", [*SMALL, setting], None, None) == 2
    assert message in capsys.readouterr().err


def test_a_failing_peer_ends_all_ranks(broken, tmp_path):
    done = forked.run(2, "benchmarks", "cohort", *SMALL, f"pfl={broken}")
    assert done.returncode == 1
    assert "benchmarks: pfl ended with 1 after 0 of 2 rounds" in done.stderr and "No module named 'pfl'" in done.stderr


def test_what_was_not_measured_is_said(capsys):
    assert command.run_benchmark("cohort", SMALL, None, None) == 0
    out = capsys.readouterr().out
    assert "fedmpi loop" in out and "pfl was not measured: python3 -m venv" in out
