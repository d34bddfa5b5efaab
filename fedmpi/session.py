"""Start and end of a run: rank 0 checks everything and decides, all ranks set up the same, errors end all of them."""
from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedmpi import errors
from fedmpi.comm.launcher import speaks
from fedmpi.comm.mpi_world import open_world
from fedmpi.comm.transport import Transport
from fedmpi.context import RankContext
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.ranks import refuse_mixed
from fedmpi.slurm.deadline import find_deadline

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


class StopFlag:
    """A flag that signals raise: the run then saves after the round under way, or gives that up, and exits with 75."""

    def __init__(self):
        self.asked, self.since = False, None
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number, frame):
        # nothing else: handlers that print or write run into the very call they interrupt
        if self.asked and number == signal.SIGINT:
            os._exit(128 + number)
        self.since = self.since or time.monotonic()
        self.asked = True

    def __call__(self) -> bool:
        return self.asked

    def waits(self) -> float:
        """Return the seconds since this process was asked to stop, 0 where it was not."""
        return time.monotonic() - self.since if self.asked else 0.


@dataclass(frozen=True)
class RunRequest:
    """What the user asks for: see the command `fedmpi run`."""
    config_path: str
    overrides: list[str]
    out: str | None = None
    resume: str | None = None
    time_limit: str | None = None

    @property
    def words(self) -> list:
        """Return what all ranks must have been asked for alike."""
        return [self.config_path, self.overrides, self.out, self.resume, self.time_limit]


def run_command(config_path: str, overrides: list[str], out: str | None, resume: str | None,
                time_limit: str | None = None) -> int:
    """Run a configuration on all ranks. Returns the exit code of this rank (see fedmpi.errors)."""
    stop = StopFlag()      # first of all: USR1 would end a process that has no handler for it yet

    context = RankContext(stop, stop.waits)

    request = RunRequest(config_path, overrides, out, resume, time_limit)

    def take_part(world: Transport) -> int:
        return (serve_as_worker if world.rank else lead)(world, request, context)
    return on_all_ranks(take_part, context)


def on_all_ranks(take_part: Callable[[Transport], int], context: RankContext | None = None) -> int:
    """Join the ranks of this job, and leave with the code of `take_part`. A rank on which it fails ends all of them,
    with one message."""
    try:
        world = open_world()
    except BadInput as error:      # every process believes that it is rank 0: let one speak
        if speaks():
            print(f"fedmpi: {error}", file=sys.stderr)
        return errors.BAD_INPUT
    try:
        code = take_part(world)
        world.close(code)
        return code
    except BaseException as error:
        world.fail(*last_words(world, context or RankContext(), error))
        raise


def last_words(world: Transport, context: RankContext, error: BaseException) -> tuple[str, int]:
    """Say who failed at what: rank, host, client, round; unexpected errors bring their traceback for the log."""
    if isinstance(error, BadInput) and world.rank == 0:
        return f"fedmpi: {error}", error.code
    where = f"rank {world.rank} of {world.size} on {world.host}"
    if context.client is not None:
        where = f"client {context.client}, round {context.round + 1} ({where})"
    if isinstance(error, FedmpiError):
        return f"fedmpi: {where}: {error}", error.code
    kind = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    return f"fedmpi: {where}: {kind}\n" + "".join(traceback.format_exception(error)), errors.FAILED


def serve_as_worker(world: Transport, request: RunRequest, context: RankContext) -> int:
    """A worker rank: set up as rank 0 says, take orders until it says stop."""
    refuse_mixed(world, request.words)
    import torch  # noqa: F401  (seconds: loaded while rank 0 reads the configuration and the data)
    start = json.loads(receive(world))
    if "code" in start:
        return start["code"]
    from fedmpi.assembly import assemble
    return assemble(world, start, context).crew.serve()


def lead(world: Transport, request: RunRequest, context: RankContext) -> int:
    """Rank 0: check everything, tell the workers, run, and leave result.json."""
    from fedmpi.assembly import decide
    try:
        refuse_mixed(world, request.words)
        ends = find_deadline(request.time_limit)
        decision = decide(request.config_path, request.overrides, request.out, request.resume, world)
    except FedmpiError as error:      # nothing has started: all ranks leave quietly with the same code
        print(f"fedmpi: {error}", file=sys.stderr, flush=True)
        send(world, json.dumps({"code": error.code}))
        return error.code
    try:
        return conduct(world, context, decision, ends)
    finally:
        decision.folder.release()


def conduct(world: Transport, context: RankContext, decision, ends) -> int:
    """Run the rounds of a decision that holds its run folder."""
    from fedmpi.assembly import assemble, prepare_run
    from fedmpi.comm.orders import Order
    from fedmpi.progress import Progress
    progress = Progress(decision.folder.log_path)
    world.on_failure = note_failure = failure_noter(progress, decision.folder)
    start = decision.start | {"host": world.host}
    send(world, json.dumps(start))
    try:
        run = prepare_run(assemble(world, start, context), decision, progress, context.stop, ends)
        finished = run.go()
        code = conclude(run) if finished else describe_saved(run)
        run.crew.call(Order.STOP, np.int64(code))
        return code
    except Exception as error:
        words, code = last_words(world, context, error)
        if world.size == 1:
            words = note_failure(words)
        world.fail(words, code)
        raise


def conclude(run) -> int:
    """Write result.json and print the last lines."""
    from fedmpi.server.late import judge_last_round
    from fedmpi.storage.run_status import reached
    from fedmpi.text import duration, percent
    judge_last_round(run)
    result = run.result() | run.storage.facts()
    run.folder.finish(result, run.state.metrics)
    run.progress.say(
        f"{result['method']}: accuracy {percent(result['accuracy_mean'])} mean over {run.honest.sum()} "
        f"{'' if run.honest.all() else 'honest '}clients, {percent(result['accuracy_worst_decile'])} in the worst "
        f"tenth, {reached(result)}; {result['rounds']} rounds in {duration(result['seconds'])} on {result['ranks']} "
        f"rank{'s' * (result['ranks'] > 1)}\n{run.early_end()}"
        f"digest {result['digest'][:16]}  results in {run.folder.path}{run.storage.summary()}")
    return errors.FINISHED


def describe_saved(run) -> int:
    run.progress.say(f"{run.stopped}: saved after round {run.state.round} of {run.config.rounds} in "
                     f"{run.folder.path}; start again with --out {run.folder.path} --resume auto")
    return errors.SAVED


def failure_noter(progress, folder):
    """Make the function that logs a failure in full, unlocks the folder and returns what the terminal should say."""
    from fedmpi.storage.checkpoint import list_checkpoints

    def note(message: str) -> str:
        progress.note(message)
        folder.release()
        first, _, more = message.partition("\nTraceback")
        saved = list_checkpoints(folder.checkpoints)
        remedy = f"\nsaved so far: {saved[0]}; continue with --out {folder.path} --resume auto" if saved else ""
        return first + (f"\n(traceback in {folder.log_path})" if more else "") + remedy
    return note


def send(world: Transport, text: str) -> None:
    """Rank 0 tells all ranks a text."""
    if world.size > 1:
        data = np.frombuffer(text.encode(), np.uint8)
        world.broadcast_header(np.array([data.size, 0], np.int64))
        world.broadcast(data.copy())


def told(world: Transport, text: str) -> str:
    """Return rank 0's text on every rank."""
    if world.rank:
        return receive(world)
    send(world, text)
    return text


def receive(world: Transport) -> str:
    header = np.empty(2, np.int64)
    world.broadcast_header(header)
    return world.broadcast(np.empty(int(header[0]), np.uint8)).tobytes().decode()
