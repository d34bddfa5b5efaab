"""Starts of runs on one rank in this process, on forked ranks, or on the ranks of real MPI jobs.

    mpiexec -n 3 python -m tests.decomposition.ranks CONFIG STARTS.json      # performs them one after another"""
from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import asdict
from itertools import count
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from fedmpi.clients.placement import Pace
from fedmpi.comm.mpi_world import open_world
from fedmpi.comm.transport import Solo
from fedmpi.context import RankContext
from fedmpi.engines.vmap import Vmap
from fedmpi.errors import FINISHED, SAVED
from fedmpi.run_request import RunRequest
from fedmpi.session import explain_failure, lead_command, serve_as_worker
from tests.decomposition.cases import ROUNDS, Start

# The text before the code of a start in the output of rank 0.
CODE = "exit code "


@contextmanager
def decomposed(start: Start):
    """Limit the clients that are trained at once, and move clients, as a start says; no setting does this exactly."""
    rounds = count()

    def moves(self, left):
        t = next(rounds)
        if self.costs is None or len(self.hosts) < 2:
            return None
        ids = np.flatnonzero(np.arange(len(self.homes)) % 3 == t % 3)
        return ids, self.hosts[(np.searchsorted(self.hosts, self.homes[ids]) + 1) % len(self.hosts)]

    def ranks(self, who):
        shifted = self.hosts[(who.ids + who.round) % len(self.hosts)]
        self.training_ranks = shifted if self.movable else self.homes[who.ids]
        return self.training_ranks

    with ExitStack() as stack:
        stack.enter_context(patch.object(Vmap, "_fitting", lambda *_: start.width))
        if start.moving:
            stack.enter_context(patch.object(Pace, "plan_moves", moves))
            stack.enter_context(patch.object(Pace, "choose_ranks", ranks))
        yield


def perform(world: Solo, config: str, start: Start) -> int:
    """Perform this rank's part of a start; return its exit code."""
    asked = count(1)
    request = RunRequest(config, list(start.overrides), start.out, start.resume)
    context = RankContext(lambda: not world.rank and start.stop_after < ROUNDS and next(asked) >= start.stop_after)
    with decomposed(start), redirect_stdout(io.StringIO()):
        try:
            return (serve_as_worker if world.rank else lead_command)(world, request, context)
        # as `fedmpi run` does on every rank
        except Exception as error:
            world.fail(*explain_failure(world, context, error))
            raise


def expected(start: Start) -> int:
    return FINISHED if start.stop_after == ROUNDS else SAVED


class Ended(NamedTuple):
    """How a start ended."""
    # None: it did not end, or said nothing of its end
    code: int | None
    # what it refused, without rank, host and folder
    refusal: str = ""


class Alone(Solo):
    """A single process that survives its run."""
    refusal = ""

    def fail(self, message, code):
        self.refusal = find_refusal(message)
        raise SystemExit(code)


class Forked:
    """Performs starts on forks of this process, which has all modules loaded; a single rank is this process itself."""

    def __init__(self, config: Path):
        self.config = str(config)

    def __call__(self, starts: list[Start]) -> list[Ended]:
        """Perform starts; return how each ended."""
        ended = {start: self.alone(start) for start in starts if here(start)}
        for ranks in sorted({start.ranks for start in starts}):
            ended |= in_jobs([start for start in starts if start.ranks == ranks and not here(start)], self.on)
        return [ended[start] for start in starts]

    def alone(self, start: Start) -> Ended:
        world = Alone()
        try:
            return Ended(perform(world, self.config, start))
        except SystemExit as failed:
            return Ended(failed.code, world.refusal)

    def on(self, starts: list[Start]) -> CompletedProcess:
        from tests import forked
        with patch.object(forked, "LIMIT", patience(starts)):
            try:
                return forked.call(starts[0].ranks, lambda: all_of(self.config, starts))
            # What it had printed by then counts.
            except AssertionError as hung:
                return CompletedProcess([], None, str(hung), str(hung))


def here(start: Start) -> bool:
    """Say whether this process may perform a start; a pool of two threads would not survive later forks."""
    return start.ranks == 1 and "threads=1" in start.overrides


class Mpiexec:
    """Performs starts in real MPI jobs, one for all starts on the same number of ranks."""

    def __init__(self, config: Path):
        self.config, self.numbers = config, count()

    def __call__(self, starts: list[Start]) -> list[Ended]:
        ended = {}
        for ranks in sorted({start.ranks for start in starts}):
            ended |= in_jobs([start for start in starts if start.ranks == ranks], self.on)
        return [ended[start] for start in starts]

    def on(self, starts: list[Start]) -> CompletedProcess:
        from tests import launch
        path = self.config.parent / f"starts-{next(self.numbers)}.json"
        path.write_text(json.dumps([asdict(start) for start in starts]))
        with patch.object(launch, "LIMIT", patience(starts)):
            job = launch.start(starts[0].ranks, "-m", "tests.decomposition.ranks", self.config, path)
            return launch.finish(job)


def patience(starts: list[Start]) -> int:
    """Return the seconds until a job that hangs is ended: a safety net, not a measurement."""
    return 240 + 30 * len(starts)


def in_jobs(starts: list[Start], job: Callable[[list[Start]], CompletedProcess]) -> dict[Start, Ended]:
    """Perform starts on the same number of ranks, all in one job, and after each refusal the others in a further one.

    Errors that are not refusals go to stderr. After a job that hangs no further one is begun."""
    ended: dict[Start, Ended] = {}
    while starts:
        done = job(starts)
        codes = [int(line.removeprefix(CODE)) for line in done.stdout.splitlines() if line.startswith(CODE)]
        ended |= {start: Ended(code) for start, code in zip(starts, codes, strict=False)}
        starts = starts[len(codes):]
        if not starts:
            break
        refusal = find_refusal(done.stderr)
        if not refusal:
            print(f"{starts[0]} ended its job with {done.returncode}:\n{done.stderr}", file=sys.stderr)
        ended[starts[0]] = Ended(done.returncode, refusal)
        if done.returncode is None:
            ended |= dict.fromkeys(starts, Ended(None))
            break
        starts = starts[1:]
    return ended


def find_refusal(said: str) -> str:
    """Return the first line in which fedmpi refuses to go on, without rank and host; "" for any other error."""
    if "Traceback" in said:
        return ""
    for line in said.splitlines():
        if line.startswith("fedmpi: "):
            return re.sub(r" \(rank \d+ of \d+ on [^)]+\)| rank \d+ of \d+ on [^:]+:", "", line)
    return ""


def all_of(config: str, starts: list[Start]) -> None:
    """Perform starts one after another on the ranks of one job."""
    world = open_world()
    for start in starts:
        code = perform(world, config, start)
        if world.rank == 0:
            print(f"{CODE}{code}", flush=True)
    world.close()


if __name__ == "__main__":
    listed = json.loads(Path(sys.argv[2]).read_text())
    all_of(sys.argv[1], [Start(**one | {"overrides": tuple(one["overrides"])}) for one in listed])
