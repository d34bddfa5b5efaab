"""fedmpi from Python: what `import fedmpi` offers. The command line does the same work.

    import fedmpi
    result = fedmpi.run("configs/quickstart.yaml", rounds=20, train={"lr": 0.05})
    print(result.accuracy, result.digest)

A configuration is the path of a YAML file or a mapping with the same settings. Keywords replace its settings: a
section is a mapping (`train={"lr": 0.05}` changes train.lr alone). A method, model or partition is a name, a mapping
with its `name`, or a class of one's own; a mapping without a name changes settings of the configuration's. Names with
dots go into `**{"train.lr": 0.05}`."""
from __future__ import annotations

import atexit
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from numbers import Integral
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from fedmpi import errors
from fedmpi.argument_names import name_arguments
from fedmpi.comm.launcher import is_inside_launcher
from fedmpi.comm.mpi_world import open_world
from fedmpi.comm.transport import Solo, Transport
from fedmpi.context import RankContext, RoundCallback
from fedmpi.errors import AlreadyFinished, BadInput, FedmpiError, GivenUp
from fedmpi.json_values import JsonObject
from fedmpi.own_code.failures import describe_failure
from fedmpi.paths import require_given_path, require_path
from fedmpi.process_state import handle_signals, isolate_computation, restore_signals
from fedmpi.result import Result, require_pandas
from fedmpi.run_request import RunRequest
from fedmpi.session import decide_and_tell, explain_failure, run_decision, serve_as_worker, share_text
from fedmpi.stop_signals import SIGNALS

if TYPE_CHECKING:
    import pandas as pd

# the MPI world of this process, once it was joined: several runs share it
_world: list[Transport] = []


class InterpreterWorld(Solo):
    """The world of one process that belongs to the user's program: errors are raised and never end it."""

    def fail(self, message: str, code: int) -> NoReturn:
        error = sys.exc_info()[1]
        raise_error(message, code, error.__cause__ if isinstance(error, FedmpiError) else error)

    def close(self, code: int = 0) -> None:
        """Nothing to finalise."""


@name_arguments()
def run(config: str | os.PathLike[str] | Mapping[str, object], *, out: str | os.PathLike[str] | None = None,
        resume: str | os.PathLike[str] | None = None, time_limit: str | int | None = None, quiet: bool = False,
        on_round: RoundCallback = None, accept_changed_code: bool = False,
        **overrides: object) -> Result:
    """Train a federation and return what it found, as the command `fedmpi run` does.

    In a program that `mpiexec -n 5 python program.py` starts, all ranks call it alike, and each gets the result.
    The run's folder holds everything that the result offers.

    Args:
        config: path of a YAML file, or a mapping with the same settings
        out: run folder; default: that of the checkpoint to resume, else runs/NAME-001 or the next number that is free
        resume: "auto" for the newest good checkpoint of the run folder, or the path of one
        time_limit: save and stop before so much time is over: minutes, or as Slurm writes it ("01:30:00")
        quiet: print nothing; log.txt in the run folder has it all
        on_round: is called at rank 0 after every round with its line of metrics.jsonl as a dict. If it raises an
            exception, the run ends without a result, and the exception reaches the caller; other ranks raise GivenUp.
            What the run saved last can be resumed.
        accept_changed_code: continue even if your own code was changed since the checkpoint; the result will say so
        overrides: settings that replace the configuration's

    Raises:
        BadInput: if the settings cannot be run; nothing was started.
        GivenUp: if the run was stopped by a signal or its time limit; it is saved and can be resumed. If its round was
            given up because of `checkpoint.grace`, it goes on from its last checkpoint, or begins anew without one.
        KeyboardInterrupt: if Ctrl-C stopped the run, as GivenUp; a second Ctrl-C raises it at once, and nothing more
            is saved.
        FedmpiError: if the run failed. In a job of several ranks a failure ends the whole job."""
    if isinstance(time_limit, int | np.integer) and not isinstance(time_limit, bool):
        time_limit = str(time_limit)
    if not (time_limit is None or isinstance(time_limit, str)):
        raise BadInput(f"time_limit={time_limit!r}: give whole minutes, or a text such as '01:30:00'")
    if "ranks" in overrides:
        raise BadInput(f"ranks={overrides['ranks']!r}: a run has the ranks that its program was started on: start it "
                       "by mpiexec -n 3 python program.py, or give fedmpi.sweep(job, ranks=3) a job")
    if not (on_round is None or callable(on_round)):
        raise BadInput(f"on_round={on_round!r}: give a function, which is called with a mapping after every round")
    if on_round and is_only_begun(on_round):
        raise BadInput(f"on_round={on_round!r}: a call of it only makes a coroutine or a generator, which nobody runs; "
                       "give a plain function (def, without async and yield)")
    request = RunRequest(require_config(config), overrides, require_path("out", out),
                         require_path("resume", resume, "'auto', or the path of a checkpoint"), time_limit,
                         accept_changed_code=accept_changed_code)
    world = join_world()
    with handle_signals() as stop, isolate_computation():
        context, raised = RankContext(stop, stop.waits), None
        try:
            end: JsonObject = {}
            if world.rank == 0:
                end, raised = lead_run(world, request, context, quiet, on_round)
            else:
                serve_as_worker(world, request, context)
            end = json.loads(share_text(world, json.dumps(end)))
        except BaseException as error:
            # the other ranks wait for this one
            if world.size > 1:
                world.fail(*explain_failure(world, context, error))
            # a round that took too long after Ctrl-C
            if isinstance(error, GivenUp) and stop.number == signal.SIGINT:
                raise KeyboardInterrupt(str(error)) from error
            raise
        finally:
            world.on_failure = None
        if world.heartbeat:
            world.heartbeat.close()
            world.heartbeat = None
        if end["code"] == errors.SAVED and stop.number == signal.SIGINT:
            raise KeyboardInterrupt(end["message"])
    if raised is not None:
        raise raised
    if end["code"] != errors.FINISHED:
        raise_error(end["message"], end["code"])
    return Result(end["folder"], own_code=True)


def is_only_begun(function: Callable[..., object]) -> bool:
    """Say whether a call of a function runs nothing of it: it is `async`, or a generator."""
    asked: list[object] = [function, type(function).__call__]
    return any(inspect.iscoroutinefunction(one) or inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one)
               for one in asked)


def require_config(config: object) -> str | Mapping[str, object]:
    """Return a configuration as it was given, a path as text. Raises BadInput for anything else."""
    if isinstance(config, Mapping):
        return config
    return require_given_path("config", config, "the path of a YAML file, or a mapping of settings")


def lead_run(world: Transport, request: RunRequest, context: RankContext, quiet: bool,
             on_round: RoundCallback) -> tuple[JsonObject, BaseException | None]:
    """Do the part of rank 0. Return what all ranks are told of the end (code, folder and message), and the exception
    to raise here: the refusal, or what `on_round` raised."""
    try:
        decision = decide_and_tell(world, request)
    except AlreadyFinished as error:
        return {"code": error.code, "folder": str(error.folder.resolve())}, None
    except FedmpiError as error:
        return {"code": error.code, "message": str(error)}, error
    decision.folder.fix_place()
    folder = decision.folder.path.resolve()
    try:
        code = run_decision(world, context, decision, quiet, on_round)
    except errors.CallbackError as error:
        raised = error.__cause__
        return {"code": errors.SAVED, "message": f"on_round ended the run at rank 0: {raised!r}"}, raised
    finally:
        decision.folder.release()
    return {"code": code, "folder": str(folder),
            "message": f"the run was stopped and is saved: continue with out={str(folder)!r}, resume='auto'"}, None


def join_world() -> Transport:
    """Join the ranks of the job that this process was started in; without a launcher it is alone and needs no MPI."""
    if not _world:
        world = open_world() if is_inside_launcher() or "mpi4py.MPI" in sys.modules else Solo()
        if world.size > 1:
            end_job_with_program(world)
        _world.append(world if world.size > 1 else InterpreterWorld())
    return _world[0]


def end_job_with_program(world: Transport) -> None:
    """Let an error that ends this rank's program end the whole job, as `python -m mpi4py` does: other ranks may wait
    for this one. Python's hook, or the one that the program has set, is called first and prints the traceback. If the
    program ends without an error (`sys.exit`), the others learn that, too."""
    before = sys.excepthook

    def end_job(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else errors.FAILED
        try:
            before(kind, error, trace)
        finally:
            world.fail(f"fedmpi: rank {world.rank} of {world.size} on {world.host}: {describe_failure(error)}", code)
    sys.excepthook = end_job
    atexit.register(world.leave)


def raise_error(message: str, code: int, cause: BaseException | None = None) -> NoReturn:
    """Raise the FedmpiError of an exit code, with its cause: an error of the user's own code, for example."""
    kind = {errors.BAD_INPUT: BadInput, errors.SAVED: GivenUp}.get(code, FedmpiError)
    raise kind(message.removeprefix("fedmpi: ")) from cause


@name_arguments()
def load_result(folder: str | os.PathLike[str], *, own_code: bool = False) -> Result:
    """Return the result of a finished run from its folder. Raises BadInput if it holds no finished run.

    Args:
        folder: the run folder
        own_code: `Result.model` may import classes that the run names and that are not built in: only if you trust it
    """
    return Result(folder, own_code)


@name_arguments()
def plan(config: str | os.PathLike[str] | Mapping[str, object], *, ranks: int = 3,
         **overrides: object) -> JsonObject:
    """Return who would host whom, memory, bytes and steps per round, as `fedmpi plan --json` prints them. Nothing is
    trained; the federation is prepared if it is not there yet.

    Args:
        config: as for `run`
        overrides: as for `run`
        ranks: ranks to plan for, the server among them

    Raises BadInput."""
    from fedmpi.commands.plan import make_plan
    refuse_bad_counts(ranks=ranks)
    with isolate_computation():
        return make_plan(require_config(config), overrides, ranks)


@name_arguments()
def sweep(job: str | os.PathLike[str], *, scale: str | None = None, out: str | os.PathLike[str] | None = None,
          at_once: int = 1, ranks: int = 1, accept_changed_code: bool = False) -> pd.DataFrame:
    """Run all runs of a job file that are not finished, each in processes of its own, as `fedmpi sweep` does.

    Args:
        job: YAML file with rows, columns and seeds of runs
        scale: a smaller variant that the job names
        out: folder of the job's runs; default: runs/JOB[-SCALE]
        at_once: runs at a time
        ranks: MPI ranks of each run
        accept_changed_code: finished runs count, and others continue, even if your own code was changed since

    Returns:
        a row for each run: row, column, seed, folder and every single number of its result.json

    Raises:
        BadInput: if the job cannot be run.
        GivenUp: if runs are left, because a signal stopped them (a second Ctrl-C ends them at once) or another process
            runs them; call again to go on.
        FedmpiError: if a run failed. The others have run, unless it says that some are left, as for GivenUp."""
    from fedmpi.sweeps import changed_code
    from fedmpi.sweeps import job as jobs
    from fedmpi.sweeps.local import Sweep
    pandas = require_pandas()
    path = require_given_path("job", job, "the path of a job file")
    refuse_bad_counts(at_once=at_once, ranks=ranks)
    if not (scale is None or isinstance(scale, str)):
        raise BadInput(f"scale={scale!r}: give the name of one of the job's scales as text")
    planned, runs = jobs.plan_job(path, scale, require_path("out", out))
    runs = changed_code.mark_runs(runs, accept_changed_code)
    started = Sweep(runs, at_once, ranks, [planned.measure, *planned.also])
    with restore_signals(*SIGNALS):
        code = started.go()
    if code == errors.SAVED:
        raise GivenUp(f"the sweep of {path} was stopped; the same call continues it" if started.stopping else
                      f"{started.left} of {len(runs)} runs of {path} are left: another process runs "
                      "them, or was asked to stop; call again when it has ended")
    if code != errors.FINISHED:
        left = f"\n{started.left} of {len(runs)} runs are left; call again to go on" * (started.left > 0)
        raise FedmpiError("\n".join(f"{run.name}: {why}" for run, why in started.failed) + left)
    return pandas.DataFrame([{"row": run.row, "column": run.column, "seed": run.seed,
                              "folder": str(run.folder.absolute()),
                              **select_numbers(run.outcome().result or {})} for run in runs])


def refuse_bad_counts(**numbers: object) -> None:
    """Raise BadInput, which names the argument, unless each of these numbers of runs or ranks is whole and at least 1,
    and not so large that it must be a slip."""
    from fedmpi.commands.arguments import MOST_RANKS
    for name, number in numbers.items():
        if not isinstance(number, Integral) or not 1 <= int(number) <= MOST_RANKS:
            raise BadInput(f"{name} = {number!r}: give a whole number from 1 to {MOST_RANKS:,}")


def select_numbers(result: JsonObject) -> JsonObject:
    """Return the entries of a result that are neither lists nor mappings."""
    return {name: value for name, value in result.items() if not isinstance(value, list | dict)}


def list_methods() -> list[str]:
    """Return the names of all methods: those of fedmpi, then those of installed plug-ins."""
    from fedmpi.commands.catalogue import list_names
    return list_names("methods")
