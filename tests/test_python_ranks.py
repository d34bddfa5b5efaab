"""Python programs on several ranks: every rank gets the result, and a rank that fails ends the job."""
from __future__ import annotations

import json
import operator
import sys

import pytest

import fedmpi
from fedmpi import python_api
from fedmpi.comm.transport import Solo
from fedmpi.errors import BadInput, GivenUp
from tests import forked, launch
from tests.test_python_api import Interrupted

pytestmark = pytest.mark.slow("runs from Python")


def test_all_ranks_leave_when_the_callers_function_raises(bench):
    def program():
        try:
            fedmpi.run(bench.config, out=bench.out("ranks-pruned"), quiet=True, on_round=lambda line: 1 / 0)
        except (ZeroDivisionError, GivenUp) as error:
            said = f"{type(error).__name__}: {error}"
            bench.out(f"pruned-{python_api.join_world().rank}.txt").write_text(said)
    done = forked.call(2, program, cwd=bench.folder)
    assert done.returncode == 0, done.stderr
    assert bench.out("pruned-0.txt").read_text() == "ZeroDivisionError: division by zero"
    assert bench.out("pruned-1.txt").read_text().startswith("GivenUp: on_round ended the run at rank 0: ZeroDiv")


def test_two_ranks_run_twice_with_a_refusal_between(bench):
    """Every rank of a job calls alike, and each has the result and the error."""
    def program():
        digests = []
        for name in ("one", "two"):
            digests.append(fedmpi.run(bench.config, out=bench.out(f"ranks-{name}"), quiet=True).digest)
            try:
                fedmpi.run(bench.config, out=bench.out("ranks-refused"), rounds=0)
            except BadInput as error:
                digests.append(str(error))
        rank = python_api.join_world().rank
        bench.out(f"rank-{rank}.json").write_text(json.dumps(digests))
    done = forked.call(2, program, cwd=bench.folder)
    assert done.returncode == 0, done.stderr
    refusal = "keyword arguments: rounds = 0: should be greater than or equal to 1"
    for rank in (0, 1):
        said = json.loads(bench.out(f"rank-{rank}.json").read_text())
        assert said == [bench.straight(3), refusal] * 2


def test_a_rank_that_fails_ends_the_job(bench):
    def program():
        fedmpi.run(bench.config, out=bench.out("ranks-fail"), quiet=True, method={"name": Interrupted, "fails": True})
    done = forked.call(2, program, cwd=bench.folder)
    assert done.returncode == 1 and "as the test asks" in done.stderr


BETWEEN = """
import sys

from mpi4py import MPI

import fedmpi

hook = sys.excepthook
sys.excepthook = lambda *error: (print("the program's own hook", flush=True), hook(*error))
for name in ("one", "two"):
    fedmpi.run("c.yaml", out=f"between-{sys.argv[1]}-{name}", quiet=True, rounds=1)
    if MPI.COMM_WORLD.rank == int(sys.argv[1]):
        raise MemoryError("between two runs")
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_between_two_runs_ends_the_job(bench, rank):
    """The other rank waits for the one that fails, in its second run."""
    bench.out("between.py").write_text(BETWEEN)
    done = launch.finish(launch.start(2, "between.py", rank, cwd=bench.folder))
    assert done.returncode == 1 and done.stdout.count("the program's own hook") == 1
    assert done.stderr.count("Traceback") == 1
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("fedmpi: ")]
    assert said.startswith(f"fedmpi: rank {rank} of 2 on ")
    assert said.endswith(": between.py:13: MemoryError: between two runs")
    assert bench.result(f"between-{rank}-one")["rounds"] == 1


OF_THE_PROGRAM = r"""
from functools import partial

from torch import nn

import fedmpi


def build_network(wide=8) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, wide), nn.Linear(wide, 10))


def share_right(logits, labels):
    return (logits.argmax(1) == labels).double().mean()


wider = partial(build_network, 9)
for name, model in (("function", build_network), ("partial", wider)):
    result = fedmpi.run("c.yaml", out=f"own-{name}", quiet=True, rounds=1, model=model,
                        evaluate={"measures": [share_right]})
    size = sum(w.numel() for w in result.model(client=0).parameters())
    print(f"{size}\n", end="", flush=True)
"""


def test_functions_of_the_program_are_the_same_on_all_ranks(bench):
    """Each process has them at an address of its own, which Python's text of a function contains."""
    bench.out("functions.py").write_text(OF_THE_PROGRAM)
    done = launch.finish(launch.start(2, "functions.py", cwd=bench.folder))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["610", "610", "685", "685"]


LEAVING = """
import sys

import fedmpi.comm.departure
from fedmpi.python_api import join_world

fedmpi.comm.departure.PATIENCE_S = .5
world, (leaves, code, *others) = join_world(), sys.argv[1:]
world.barrier()
if world.rank == int(leaves) or others:
    sys.exit(int(code))
world.barrier()
"""


@pytest.mark.parametrize("rank, code", [(0, 3), (1, 0)])
def test_a_rank_that_leaves_the_program_keeps_nobody_waiting(bench, rank, code):
    bench.out("leaving.py").write_text(LEAVING)
    done = launch.finish(launch.start(3, "leaving.py", rank, code, cwd=bench.folder))
    assert done.returncode == 1 and f"fedmpi: rank {rank} has left the program (sys.exit?), and rank " in done.stderr
    done = launch.finish(launch.start(3, "leaving.py", rank, code, "all", cwd=bench.folder))
    assert done.returncode == code and "fedmpi: " not in done.stderr


@pytest.mark.parametrize("error, code", [(ValueError("so"), 1), (KeyboardInterrupt(), 130)])
def test_an_error_that_cannot_be_printed_ends_the_job_too(monkeypatch, error, code):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")
    ended, world = [], Solo()
    monkeypatch.setattr(world, "fail", lambda *words: ended.append(words))
    monkeypatch.setattr(sys, "excepthook", refuse)
    python_api.end_job_with_program(world)
    with pytest.raises(OSError):
        sys.excepthook(type(error), error, None)
    assert ended == [(f"fedmpi: rank 0 of 1 on {world.host}: {type(error).__name__}{': so' * (code == 1)}", code)]


def test_an_error_before_the_run_ends_the_job_too(bench, monkeypatch):
    """The workers wait for rank 0, which finds an error of its own while it decides."""
    # No line of this file is in the traceback, which would make it an error of the user's own code.
    monkeypatch.setattr(python_api, "decide_and_tell", operator.truediv)

    def program():
        fedmpi.run(bench.config, out=bench.out("ranks-undecided"), quiet=True)
    done = forked.call(2, program, cwd=bench.folder)
    assert done.returncode == 1 and "TypeError: unsupported operand" in done.stderr
