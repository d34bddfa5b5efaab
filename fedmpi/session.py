"""Start and end of a run. Rank 0 checks everything and decides, all ranks build the same parts, and an error on one
rank ends all of them."""
from __future__ import annotations

import json
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmpi import errors
from fedmpi.comm.launcher import reports_refusal
from fedmpi.comm.mpi_world import open_world
from fedmpi.comm.transport import Transport
from fedmpi.context import RankContext, RoundCallback
from fedmpi.errors import AlreadyFinished, BadInput, FedmpiError, StorageError
from fedmpi.own_code.failures import describe_failure, find_own_line, format_cause, is_ctrl_c
from fedmpi.progress import write_stdout
from fedmpi.ranks import refuse_mixed, refuse_other_ranks
from fedmpi.run_request import RunRequest
from fedmpi.slurm.refusal import mark_refusal
from fedmpi.stop_signals import StopFlag
from fedmpi.storage import run_files
from fedmpi.storage.run_end import format_digest, format_end_by_callback, format_saved
from fedmpi.text import count_words, format_error, print_failure, split_traceback

if TYPE_CHECKING:
    from fedmpi.decision import Decision
    from fedmpi.progress import Progress
    from fedmpi.server.rounds import Run
    from fedmpi.storage.folder import RunFolder


def run_command(request: RunRequest) -> int:
    """Run what is asked for on all ranks. Returns the exit code of this rank (see fedmpi.errors)."""
    stop = StopFlag()
    # first of all: SIGUSR1 would end a process that has no handler for it yet
    stop.install()
    context = RankContext(stop, stop.waits)

    def take_part(world: Transport) -> int:
        return (serve_as_worker if world.rank else lead_command)(world, request, context)
    return run_on_all_ranks(take_part, context)


def run_on_all_ranks(take_part: Callable[[Transport], int], context: RankContext | None = None) -> int:
    """Join the ranks of this job, and leave with the code of `take_part(world)`. A rank on which it fails ends all of
    them, with one message."""
    try:
        world = open_world()
    except BadInput as error:
        # every process believes that it is rank 0: only one speaks
        if reports_refusal():
            mark_refusal(error.code)
            print_failure(f"fedmpi: {error}")
        return errors.BAD_INPUT
    try:
        code = take_part(world)
        world.close(code)
        return code
    except BaseException as error:
        words, code = explain_failure(world, context or RankContext(), error)
        mark_refusal(code)
        world.fail(words, code)
        raise


def explain_failure(world: Transport, context: RankContext, error: BaseException) -> tuple[str, int]:
    """Return what to say of an error, and the exit code. The text names rank, host, client and round. That of an
    unexpected error, or of one in the user's own code, ends with its traceback, for the log."""
    if is_ctrl_c(error):
        return "fedmpi: interrupted by Ctrl-C", 128 + signal.SIGINT
    # without a log there is no place for it
    trace = format_cause(error) if world.rank or world.on_failure else ""
    # once a round is done, a file that cannot be read, say, is a failure after which the run may go on
    lost = isinstance(error, BadInput) and context.has_begun and context.round > 0
    if isinstance(error, BadInput) and world.rank == 0 and not lost:
        return f"fedmpi: {error}\n{trace}".rstrip(), error.code
    where = f"rank {world.rank} of {world.size} on {world.host}"
    if context.client is not None:
        where = f"{context.name_client()}, round {context.round + 1} ({where})"
    if isinstance(error, FedmpiError):
        return f"fedmpi: {where}: {error}\n{trace}".rstrip(), errors.FAILED if lost else error.code
    own = find_own_line(error)
    remedy = "; repair it" + " (--resume then needs --accept-changed-code)" * context.has_begun if own else ""
    said = describe_failure(error) + remedy
    code = errors.BAD_INPUT if own and not context.has_begun else errors.FAILED
    return f"fedmpi: {where}: {said}\n" + "".join(traceback.format_exception(error)), code


def serve_as_worker(world: Transport, request: RunRequest, context: RankContext) -> int:
    """Take part in a run as a worker: build the parts that rank 0 describes, and take orders until it says stop."""
    refuse_mixed(world, request.words)
    # this takes seconds: load it while rank 0 reads the configuration and the data
    import torch  # noqa: F401
    start = json.loads(receive(world))
    if "code" in start:
        return start["code"]
    from fedmpi.assembly import assemble_from_start
    world.on_failure = partial(note_for_rank_0, Path(start["folder"]))
    return assemble_from_start(world, start, context).pool.serve()


def lead_command(world: Transport, request: RunRequest, context: RankContext) -> int:
    """Do the part of rank 0: check everything, tell the workers, run, and leave result.json. Why a request is refused
    is printed as one message; all ranks then leave quietly with the same code."""
    try:
        decision = decide_and_tell(world, request)
    except AlreadyFinished as error:
        write_stdout(f"{format_error(error)}\n")
        return errors.FINISHED
    except FedmpiError as error:
        mark_refusal(error.code, error)
        print_failure(f"fedmpi: {error}")
        return error.code
    try:
        return run_decision(world, context, decision)
    finally:
        decision.folder.release()


def decide_and_tell(world: Transport, request: RunRequest) -> Decision:
    """Check what is asked for. Return rank 0's decision, which holds the run folder.

    Raises:
        FedmpiError: if the request is refused; the workers have been told, and nothing has started."""
    from fedmpi.decision import decide
    try:
        refuse_mixed(world, request.words)
        refuse_other_ranks(world, request.ranks)
        return decide(request, world)
    except FedmpiError as error:
        send(world, json.dumps({"code": error.code}))
        raise


def run_decision(world: Transport, context: RankContext, decision: Decision, quiet: bool = False,
                 on_round: RoundCallback = None) -> int:
    """Run the rounds of a decision. Returns the exit code.

    Args:
        quiet: print nothing
        on_round: is called with the line of metrics.jsonl after every round

    Raises:
        CallbackError: if `on_round` raised; the other ranks are told that the run is over."""
    from fedmpi.assembly import assemble
    from fedmpi.comm.order_performer import OrderPerformer
    from fedmpi.preparation import prepare_run
    from fedmpi.progress import Progress
    progress = Progress(decision.folder.log_path, quiet)
    world.on_failure = note_failure = make_failure_logger(progress, decision.folder)
    send(world, json.dumps(decision.start | {"host": world.host, "folder": str(decision.folder.path.resolve())}))
    try:
        parts = assemble(world, decision.config, decision.federation, world.host, context, decision.method)
        run = prepare_run(parts, decision, progress, context.stop, on_round)
        context.has_begun = True
        finished = run.run_rounds()
        code = finish_run(run) if finished else announce_saved(run)
        run.pool.call(OrderPerformer.stop, np.int64(code))
        return code
    except errors.CallbackError as error:
        progress.note(format_end_by_callback(run.state.round, error.__cause__))
        if lost := decision.folder.release():
            progress.note(lost)
        run.pool.call(OrderPerformer.stop, np.int64(errors.SAVED))
        raise
    # The user's own code may raise the last two.
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if is_ctrl_c(error):
            raise
        words, code = explain_failure(world, context, error)
        mark_refusal(code)
        if code == errors.BAD_INPUT:
            world.on_failure = note_failure = make_failure_logger(progress, decision.folder, refused=True)
        if world.size == 1:
            words = note_failure(words)
        world.fail(words, code)
        raise
    finally:
        progress.close()


def finish_run(run: Run) -> int:
    """Evaluate the last round if it was not, write result.json and print the last lines. Returns the exit code."""
    from fedmpi.server.last_round import evaluate_last_round
    from fedmpi.storage.run_status import describe_best
    from fedmpi.text import format_duration
    evaluate_last_round(run)
    result, honest, task = run.recorder.result() | run.disk_errors.facts(), run.recorder.honest, run.recorder.task
    run.recorder.folder.finish(result, run.state.metrics)
    worst = task.format(result[f"{task.measure}_worst_decile"])
    run.progress.say(f"{result['method']}: {task.title} {task.format(result[task.key])} mean over "
                     f"{run.recorder.summarised.sum()} {'' if honest.all() else 'honest '}clients, "
                     f"{worst} in the worst tenth, {run.recorder.format_newcomers()}{describe_best(result)}; "
                     f"{result['rounds']} rounds in {format_duration(result['seconds'])} on "
                     f"{count_words(result['ranks'], 'rank')}\n"
                     f"{run.recorder.explain_early_stop()}{run.recorder.describe_absence()}"
                     f"{format_digest(result['digest'], run.recorder.folder.path)}{run.disk_errors.summary()}")
    return errors.FINISHED


def announce_saved(run: Run) -> int:
    """Say where a run that was stopped early is saved, and how it goes on."""
    run.progress.say(format_saved(run.stopped, run.state.round, run.config.rounds, run.recorder.folder.path))
    return errors.SAVED


def make_failure_logger(progress: Progress, folder: RunFolder, refused: bool = False) -> Callable[[str], str]:
    """Make the function that logs a failure in full, unlocks the folder and returns what the terminal should say: how
    to go on, too, unless this start was refused, perhaps because its checkpoint cannot be continued."""
    def log_failure(message: str) -> str:
        progress.note(message)
        if lost := folder.release():
            progress.note(lost)
        first, trace = split_traceback(message, folder.log_path)
        remedy = "" if refused else describe_saved(folder.path)
        if not remedy and first.endswith(errors.ROUND_GIVEN_UP):
            remedy = f"\nnothing is saved yet; start again with --out {folder.path} --resume auto, which begins anew"
        return first + trace + f"\n{lost}" * bool(lost) + remedy
    return log_failure


def note_for_rank_0(folder: Path, message: str) -> str:
    """Log in a run's folder why a worker ends the job of a rank 0 that does not answer; return what the terminal should
    say. The folder stays locked, since that rank may be alive."""
    from fedmpi.progress import Progress
    log = folder / run_files.LOG
    # a host that does not see the log must not make another one
    if log.is_file():
        Progress(log, quiet=True).note(message)
        message = "".join(split_traceback(message, log))
    return message + describe_saved(folder)


def describe_saved(folder: Path) -> str:
    """Return a line on the newest checkpoint of a run's folder, "" if there is none."""
    from fedmpi.storage.listing import list_checkpoints
    # The folder itself may be what failed.
    with suppress(OSError, StorageError):
        for path in list_checkpoints(folder / run_files.CHECKPOINTS):
            if path.is_file():
                return f"\nsaved so far: {path}; continue with --out {folder} --resume auto"
    return ""


def send(world: Transport, text: str) -> None:
    """Send a text from rank 0 to all ranks, which call `receive`."""
    if world.size > 1:
        # The text may be a path, which may have bytes that are not UTF-8.
        data = np.frombuffer(text.encode(errors="surrogateescape"), np.uint8)
        world.broadcast_header(np.array([data.size, 0], np.int64))
        world.broadcast(data.copy())


def share_text(world: Transport, text: str) -> str:
    """Return rank 0's text on every rank. All ranks call it."""
    if world.rank:
        return receive(world)
    send(world, text)
    return text


def receive(world: Transport) -> str:
    """Return the text that rank 0 sends."""
    header = np.empty(2, np.int64)
    world.broadcast_header(header)
    return world.broadcast(np.empty(int(header[0]), np.uint8)).tobytes().decode(errors="surrogateescape")
