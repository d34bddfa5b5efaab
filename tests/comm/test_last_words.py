"""How a job ends: which rank says why, which one waits, and the exit code; and how processes become a world."""
from __future__ import annotations

import errno
import io
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fedmpi.comm import ending, launcher
from fedmpi.comm import mpi_world as worlds
from fedmpi.comm.mpi_world import World, open_world, read_library_name
from fedmpi.comm.transport import Solo, Transport
from fedmpi.errors import BadInput
from tests.comm.together import Aborted, together
from tests.sockets import Package, SocketMPI


@pytest.fixture
def steps(monkeypatch):
    """Return the list of what a process does at its end, in order; the clock stands still."""
    steps = []

    def note(what):
        return lambda *arguments: steps.append((what, *arguments))

    def leave(code):
        steps.append(("exit", code))
        raise Aborted(code)
    monkeypatch.setattr(worlds, "drain", note("drain"))
    for module in (worlds, ending):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=note("sleep"), perf_counter=lambda: 0.))
    monkeypatch.setattr(worlds.os, "_exit", leave)
    return steps


def alone(rank: int, steps: list, taken_after: int = 0) -> World:
    """Return a rank of three that gets no answers; its message counts as sent after so many looks."""
    world, looks = World(SocketMPI(rank, 3, {})), []

    def send(text, to, tag):
        steps.append(("tell", to, tag, text.tobytes()))
        return SimpleNamespace(Test=lambda: looks.append(1) or len(looks) > taken_after)
    world.comm.Isend, world.comm.Abort = send, lambda code: steps.append(("abort", code))
    return world


# what rank 0 of three says first
TELLS_WORKERS = [("tell", rank, ending.ENDING_TAG, b"") for rank in (1, 2)]


def end(world, *arguments, **how) -> None:
    with pytest.raises(Aborted):
        world.fail(*arguments, **how)


def test_the_words_of_rank_0_are_drained_before_the_job_is_aborted(steps, capsys):
    world = alone(0, steps)
    end(world, "fedmpi: why", 2)
    assert steps == [*TELLS_WORKERS, ("drain", sys.stdout, sys.stderr), ("abort", 2), ("exit", 2)]
    assert capsys.readouterr() == ("", "fedmpi: why\n")


def test_rank_0_says_what_its_run_makes_of_a_failure(steps, capsys):
    world = alone(0, steps)
    # The workers know before the run begins to wait for what is being written.
    world.on_failure = lambda message: steps.append("log") or message + "\nsaved so far: x"
    end(world, "fedmpi: why")
    assert steps[:3] == [*TELLS_WORKERS, "log"]
    assert steps[4:] == [("abort", 1), ("exit", 1)] and capsys.readouterr().err == "fedmpi: why\nsaved so far: x\n"


class FullDisk(io.StringIO):
    """A stderr that takes nothing."""

    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


class Torn:
    """Something on the way to the end of a job that fails, too."""

    def __init__(self, error):
        self.error = error

    def __call__(self, *arguments):
        raise self.error


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), KeyboardInterrupt()])
def test_a_failure_in_the_words_of_a_run_does_not_keep_the_job_from_its_end(steps, capsys, error):
    world = alone(0, steps)
    world.on_failure = Torn(error)
    end(world, "fedmpi: why", 75)
    assert steps[-2:] == [("abort", 75), ("exit", 75)]
    # Nobody reads on after Ctrl-C.
    assert capsys.readouterr().err == ("fedmpi: why\n" if isinstance(error, Exception) else "")


@pytest.mark.parametrize("rank", [0, 1, None])
def test_a_stderr_that_takes_nothing_does_not_keep_the_job_from_its_end(steps, monkeypatch, rank):
    world = Solo() if rank is None else alone(rank, steps)
    monkeypatch.setattr(sys, "stderr", FullDisk())
    end(world, "fedmpi: why", 2)
    assert steps[-1] == ("exit", 2) and (rank is None or steps[-2] == ("abort", 2))


def test_a_library_that_cannot_abort_ends_this_process(steps):
    world = alone(0, steps)
    world.comm.Abort = Torn(RuntimeError("MPI is finalized"))
    end(world, "fedmpi: why", 2)
    assert steps[-1] == ("exit", 2)


def test_a_worker_sends_names_that_are_no_text(steps):
    end(alone(1, steps), "fedmpi: runs/\udcff", 2)
    assert steps[0][3][1:] == b"fedmpi: runs/\\udcff" and steps[-1] == ("exit", 2)


def test_a_worker_tells_rank_0_and_waits_for_it_to_end_the_job(steps, capsys):
    world = alone(2, steps)
    # Rank 0 has not ended the job, so it has logged nothing.
    world.on_failure = lambda message: message + " (in its place)"
    end(world, "fedmpi: é", 75)
    assert steps[0] == ("tell", 0, worlds.FAILURE_TAG, bytes([75]) + "fedmpi: é".encode())
    assert {step[0] for step in steps[1:-3]} == {"sleep"} and steps[-3][0] == "drain"
    assert steps[-2:] == [("abort", 75), ("exit", 75)]
    assert sum(step[1] for step in steps[1:-3]) == pytest.approx(worlds.END_BY_RANK_0_S) == 60
    assert capsys.readouterr().err == "fedmpi: é (in its place)\n"


def test_a_worker_whose_words_nobody_takes_ends_the_job_after_two_seconds(steps):
    end(alone(1, steps, taken_after=10 ** 6), "fedmpi: why", 1)
    naps = [step[1] for step in steps if step[0] == "sleep"]
    assert len(naps) == 200 and sum(naps) == pytest.approx(worlds.SEND_FAILURE_S) == 2
    steps.clear()
    end(alone(1, steps, taken_after=3), "fedmpi: why", 1)
    naps = [step[1] for step in steps if step[0] == "sleep"]
    assert len(naps) == 3 + 6000 and sum(naps[3:]) == pytest.approx(worlds.END_BY_RANK_0_S)


def test_a_worker_tells_nobody_who_does_not_answer(steps):
    end(alone(1, steps), "fedmpi: rank 0 is silent", 1, tell=False)
    assert [step[0] for step in steps] == ["drain", "abort", "exit"]


def test_very_long_words_are_cut(steps):
    end(alone(1, steps), "x" * 10 ** 5, 1)
    assert len(steps[0][3]) == 60_001


@pytest.fixture
def patient(monkeypatch):
    """A thread that would wait for ever leaves."""
    def waits():
        raise Aborted("waits for ever")
    monkeypatch.setattr(worlds.threading, "Event", lambda: SimpleNamespace(wait=waits))


@pytest.mark.parametrize("taken_after, looks, naps", [(0, 1, 0), (0, 5, 4), (10 ** 6, 1, 0), (10 ** 6, 5, 4)])
def test_a_worker_leaves_the_end_to_a_rank_0_that_has_begun(steps, patient, monkeypatch, capsys, taken_after, looks,
                                                            naps):
    """Rank 0 may be in the middle of a checkpoint, and so may not receive what failed here."""
    world, looked = alone(1, steps, taken_after), []
    monkeypatch.setattr(world.comm, "Iprobe", lambda source, tag: looked.append((source, tag)) or len(looked) >= looks)
    world.on_failure = lambda message: steps.append("log")
    # The job is aborted only because this test cannot wait for ever.
    end(world, "fedmpi: why")
    assert set(looked) == {(0, ending.ENDING_TAG)}
    assert [step[0] for step in steps] == ["tell", *["sleep"] * naps, "abort", "exit"] and not capsys.readouterr().err


def test_what_cannot_be_told_does_not_keep_rank_0_from_the_end(steps, capsys):
    world = alone(0, steps)
    world.comm.Isend = Torn(RuntimeError("MPI is finalized"))
    end(world, "fedmpi: why", 2)
    assert steps[-2:] == [("abort", 2), ("exit", 2)] and capsys.readouterr().err == "fedmpi: why\n"


def test_only_one_thread_of_a_rank_ends_the_job(steps, patient):
    world = alone(1, steps)
    world.failing.acquire()
    end(world, "fedmpi: why", 1)
    assert not steps


def test_rank_0_hears_of_a_failure_wherever_it_waits():
    """Rank 0 waits in a collective that the worker will never reach."""
    def act(world):
        if world.rank == 2:
            return world._send_failure("fedmpi: rank 2: é", 75)
        if world.rank == 0:
            world.fail = lambda message, code: (_ for _ in ()).throw(Aborted(message, code))
            with pytest.raises(Aborted) as caught:
                world.broadcast(np.zeros(3))
            return caught.value.args
    assert together(3, act) == [("fedmpi: rank 2: é", 75), None, True]


@pytest.mark.parametrize("code, variables, srun", [
    (0, {"SLURM_STEP_NUM_TASKS": "3"}, False), (2, {}, False), (2, {"SLURM_STEP_NUM_TASKS": "3"}, True),
    (75, {"SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_SIZE": "3"}, False),
    (75, {"SLURM_STEP_NUM_TASKS": "1", "PMI_SIZE": "3", "MPI_LOCALNRANKS": "7"}, False)])
def test_under_srun_the_code_is_that_of_rank_0_who_leaves_last(monkeypatch, steps, code, variables, srun):
    for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for rank in (0, 1):
        world = alone(rank, steps)
        world.barrier, world.mpi.Finalize = lambda: steps.append("meet"), lambda: steps.append("finalize")
        world.heartbeat = SimpleNamespace(close=lambda: steps.append("watch"))
        steps.clear()
        if srun and rank:
            with pytest.raises(Aborted):
                world.close(code)
        else:
            world.close(code)
        assert steps[:3] == ["meet", "watch", "finalize"]
        assert [step[:1] + step[-1:] for step in steps[3:]] == (
            [] if not srun else [("drain", sys.stderr), ("exit", 0)] if rank else [("sleep", .5)])
        world.heartbeat = None
        if not rank:
            world.close(0)


def joined(monkeypatch, mpi) -> Transport:
    monkeypatch.setitem(sys.modules, "mpi4py", mpi)
    return open_world()


@pytest.fixture
def clean(monkeypatch):
    """No launcher has started this process."""
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "MPI_LOCALNRANKS",
                 "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_MCA_mpi_yield_when_idle",
                 "MPIR_CVAR_ENABLE_HEAVY_YIELD"):
        # monkeypatch then restores the variable after the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_ranks_join_the_world_of_the_library(monkeypatch, clean):
    package = Package(SocketMPI(1, 3, {}))
    package.rc.thread_level = "single"
    world = joined(monkeypatch, package)
    assert type(world) is World and (world.rank, world.size) == (1, 3) and package.rc.thread_level == "multiple"
    world = joined(monkeypatch, Package(SocketMPI(0, 1, {})))
    assert type(world) is Solo and world.library == "sockets of the tests"


def test_without_a_library_a_process_is_alone(monkeypatch, clean):
    world = joined(monkeypatch, None)
    assert type(world) is Solo and world.library.startswith("none (") and "mpi4py" in world.library

    class Broken:
        rc = SimpleNamespace()

        @property
        def MPI(self):  # noqa: N802  (as mpi4py spells it)
            raise RuntimeError("cannot load\n  MPI library " + "x" * 200)
    assert joined(monkeypatch, Broken()).library == f"none ({('cannot load MPI library ' + 'x' * 200)[:120]})"


def test_processes_that_do_not_see_each_other_are_refused(monkeypatch, clean):
    monkeypatch.setenv("PMI_SIZE", "3")
    with pytest.raises(BadInput, match="MPICH's mpiexec started 3 processes, but .*library: sockets of the tests"):
        joined(monkeypatch, Package(SocketMPI(0, 1, {})))


@pytest.mark.parametrize("shared", [True, False])
def test_libraries_are_told_to_yield_where_ranks_share_cores(monkeypatch, clean, shared):
    mpich, open_mpi = "MPIR_CVAR_ENABLE_HEAVY_YIELD", "OMPI_MCA_mpi_yield_when_idle"
    monkeypatch.setattr(worlds, "shares_cores", lambda: shared)
    # A user's own setting stays.
    monkeypatch.setenv(open_mpi, "0")
    joined(monkeypatch, None)
    assert os.environ.get(mpich) == ("1" if shared else None)
    assert os.environ[open_mpi] == "0"
    monkeypatch.delenv(open_mpi)
    joined(monkeypatch, None)
    assert os.environ.get(open_mpi) == ("1" if shared else None)


def test_the_name_of_a_library_is_one_line():
    text = "MPICH Version:      4.1.2\nMPICH Release date: today\n\0"
    assert read_library_name(SimpleNamespace(Get_library_version=lambda: text)) == "MPICH Version: 4.1.2"


def test_waits_are_in_order():
    """A worker gives rank 0 several times the time to drain its output."""
    assert worlds.END_BY_RANK_0_S >= 5 * launcher.DRAIN_S and worlds.LEAVE_AFTER_WORKERS_S == .5
