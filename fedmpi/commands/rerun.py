"""Repeat a finished run with its own settings, to check that this machine computes the same.

The digest must come out again, or at least the losses within rounding. All ranks take part, and rank 0 prints."""
from __future__ import annotations

from pathlib import Path

from fedmpi import errors
from fedmpi.comm.transport import Transport
from fedmpi.commands.verify import (
    DIGITS,
    compute_relative_difference,
    describe_environment,
    make_workplace,
    perform,
    refuse_others,
)
from fedmpi.config.own_parts import fingerprint_code
from fedmpi.config.schema import resolve
from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.own_code.changes import list_changes, warn_of_changes
from fedmpi.progress import write_stdout
from fedmpi.session import run_on_all_ranks, share_text
from fedmpi.storage import run_files, run_status
from fedmpi.text import format_pairs

# The largest relative difference of losses that rounding explains: it grows from round to round.
RERUN_ROUNDING = 1e-3


def rerun_command(run: Path, folder: str, add: bool) -> int:
    """Repeat a run on all ranks. Returns 0 if its digest comes out or its losses agree within rounding, else 1."""
    return run_on_all_ranks(lambda world: rerun(world, run, folder, add))


def rerun(world: Transport, run: Path, folder: str, add: bool = False) -> int:
    """Repeat a run and print how the repetition compares with it; return the exit code.

    Raises:
        BadInput: if the run is not finished, or if `add` asks to publish it."""
    if add:
        raise BadInput("--add publishes what fedmpi verify runs by itself, not RUN; leave out one of them")
    settings, digest, there = read_finished_run(run) if world.rank == 0 else ({}, "", [])
    for said in find_code_changes(run) if world.rank == 0 else []:
        write_stdout(f"warning: {said}; what follows compares this code with that of then\n")
    refuse_others(world, describe_environment())
    with make_workplace(world, folder, settings) as place:
        here = perform(world, place, "again", [])
        lines = run_status.list_evaluated(run_status.read_metrics(place / "again")) if world.rank == 0 else []
    code = errors.FINISHED
    if world.rank == 0:
        write_stdout(f"{format_pairs([('there', f'{digest}, {run}'), ('here', here.digest)])}\n\n")
        said = "the same digest: this machine computes the run bit for bit"
        if here.digest != digest:
            said, code = compare_losses(there, lines)
        write_stdout(f"{said}\n")
    return int(share_text(world, str(code)))


def read_finished_run(run: Path) -> tuple[JsonObject, str, list[JsonObject]]:
    """Return the settings of a finished run, its digest, and the metrics of its evaluated rounds.

    Raises:
        BadInput: if the run is not finished."""
    settings, found = run_status.read_settings(run), run_status.read_outcome(run)
    if not isinstance(settings.get("data", {}), dict):
        raise BadInput(f"{run / run_files.CONFIG} is damaged: data holds no settings")
    if found.result is None:
        raise BadInput(f"{run} is {found.state}: there is no digest to compare; finish it with --resume auto, or give "
                       "the folder of a finished run")
    # a run that `stop` ended does so again, and its rates may depend on the rounds that it was to have
    rounds = {} if found.result.get("ended") == "stop" else {"rounds": found.result["rounds"]}
    return (settings | rounds | {"checkpoint": {"every": 0}},
            found.result["digest"][:DIGITS], found.evaluated)


def find_code_changes(run: Path) -> list[str]:
    """Return a line that names the files of the run's own code that were changed since, if there are any."""
    result = run_status.read_outcome(run).result or {}
    then = result.get("own_code")
    if not isinstance(then, dict):
        return []
    now = fingerprint_code(resolve(run_status.read_settings(run)))
    return warn_of_changes(list_changes(then, now, int(result["rounds"])), f"{run} was finished")


def compare_losses(there: list[JsonObject], here: list[JsonObject]) -> tuple[str, int]:
    """Compare the losses of two runs round by round; return what to tell the user, and the exit code."""
    losses = {line["round"]: line["loss"] for line in here}
    common = [line for line in there if line["round"] in losses and line.get("loss") is not None]
    off = {line["round"]: compute_relative_difference(line["loss"], losses[line["round"]]) for line in common}
    if not off:
        return "another digest, and metrics.jsonl of the run has no losses to compare", errors.FAILED
    wrong = [t for t, value in off.items() if value > RERUN_ROUNDING]
    if not wrong:
        return (f"another digest, and losses that agree within rounding in {len(off)} evaluated rounds (at most "
                f"{max(off.values()):.0e} apart): this machine is fine, it adds up in another order", errors.FINISHED)
    first = min(off)
    why = ("settings, data or code are others than the run's" if wrong[0] == first else
           f"in round {first} only {off[first]:.0e}. Either the code is another than the run's, or a choice, such as "
           "that of a cluster, turned on a last bit: compare several seeds")
    return f"WRONG: in round {wrong[0]} the losses are {off[wrong[0]]:.0e} apart; {why}", errors.FAILED
