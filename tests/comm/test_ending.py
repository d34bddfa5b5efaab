"""A rank 0 that ends a job has the time to finish the checkpoint that is being written."""
from __future__ import annotations

import os
import re
import threading
import time

import pytest

import fedmpi
from fedmpi.comm import mpi_world as worlds
from fedmpi.comm.ending import Ending
from fedmpi.storage import checkpoint
from tests import forked
from tests.comm.together import together

pytestmark = pytest.mark.slow("a run on two ranks that waits for a worker's patience to end")

METHOD = {"name": "tests.server.test_asynchronous:InPlace", "M": 2, "bad_round": 2}
# The longest waits for a mark: safety nets. The write's is the longer one, or else a broken worker would pass.
TOLD_S, OVER_S = 10, 60


def wait_for(mark, seconds) -> None:
    """Wait until a file is there."""
    until = time.monotonic() + seconds
    while not mark.exists() and time.monotonic() < until:
        time.sleep(.01)


def test_workers_hear_that_rank_0_ends_the_job():
    def act(world):
        before = world.rank > 0 and world.ending.has_begun()
        world.barrier()
        if world.rank == 0:
            world.ending.tell_workers()
        world.barrier()
        # It stays true.
        return before, world.rank > 0 and world.ending.has_begun() and world.ending.has_begun()
    assert together(3, act) == [(False, False), (False, True), (False, True)]


def test_a_worker_that_failed_lets_rank_0_finish_a_checkpoint(bench):
    """The write of round 2 ends only when the worker, which fails in round 3, would long have ended the job itself."""
    told, over, out = bench.folder / "told", bench.folder / "over", bench.out("unhurried")

    def program():
        if os.environ["PMI_RANK"] == "0":
            hold_back()
        else:
            lose_patience()
        fedmpi.run(bench.config, out=out, quiet=True, method=METHOD, **{"checkpoint.asynchronous": True})

    def hold_back():
        write, tell = checkpoint.write_checkpoint, Ending.tell_workers

        def slow(folder, snapshot, pieces):
            if snapshot.round == 2:
                wait_for(over, OVER_S)
            return write(folder, snapshot, pieces)

        def tell_and_mark(end):
            tell(end)
            told.touch()
        checkpoint.write_checkpoint, Ending.tell_workers = slow, tell_and_mark

    def lose_patience():
        wait = Ending.wait

        def waited(end, seconds):
            # However slow this machine is, rank 0 has spoken before the time begins.
            wait_for(told, TOLD_S)
            threading.Timer(1, over.touch).start()
            wait(end, seconds)
        worlds.END_BY_RANK_0_S, Ending.wait = .1, waited
    done = forked.call(2, program, cwd=bench.folder)
    assert done.returncode == 1 and over.exists()
    assert [path.name for path in bench.saved(out.name)] == ["round-000001.h5", "round-000002.h5"]
    assert done.stderr.count("cannot count") == 1 and "round-000002.h5; continue with" in done.stderr
    assert len(re.findall(r"  fedmpi: .*cannot count", (out / "log.txt").read_text())) == 1
