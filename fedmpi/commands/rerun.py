"""Repeat a finished run with its own settings, to check that this machine computes the same.

The digest must come out again and the losses with it, or at least the losses within rounding. All ranks take part, and
rank 0 prints."""
from __future__ import annotations

import math
from pathlib import Path

from fedmpi import errors
from fedmpi.comm.transport import Transport
from fedmpi.commands.export import explain_relative_paths, refuse_other_samples
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
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.own_code.changes import list_changes, warn_of_changes
from fedmpi.progress import write_stdout
from fedmpi.server.client_files import hash_client_files, list_client_files
from fedmpi.session import run_on_all_ranks, share_text
from fedmpi.storage import run_files, run_status
from fedmpi.text import format_pairs

# The largest relative difference of losses that rounding explains: it grows from round to round.
RERUN_ROUNDING = 1e-3


def rerun_command(run: Path, folder: str, add: bool) -> int:
    """Repeat a run on all ranks. Returns 0 if its losses agree within rounding, or its digest comes out and there are
    no losses to compare, else 1."""
    return run_on_all_ranks(lambda world: rerun(world, run, folder, add))


def rerun(world: Transport, run: Path, folder: str, add: bool = False) -> int:
    """Repeat a run and print how the repetition compares with it; return the exit code.

    Raises:
        BadInput: if the run is not finished, if its data have changed since or cannot be read, or if `add` asks to
            publish it."""
    if add:
        raise BadInput("--add publishes what fedmpi verify runs by itself, not RUN; leave out one of them")
    settings, digest, there = read_finished_run(run) if world.rank == 0 else ({}, "", [])
    for said in find_code_changes(run) if world.rank == 0 else []:
        write_stdout(f"warning: {said}; what follows compares this code with that of then\n")
    refuse_others(world, describe_environment())
    with make_workplace(world, folder, settings) as place:
        if world.rank == 0:
            refuse_changed_inputs(run, place)
        here = perform(world, place, "again", [])
        lines = run_status.list_evaluated(run_status.read_metrics(place / "again")) if world.rank == 0 else []
    code = errors.FINISHED
    if world.rank == 0:
        write_stdout(f"{format_pairs([('there', f'{digest}, {run}'), ('here', here.digest)])}\n\n")
        said, code = (compare_losses if here.digest != digest else compare_evaluations)(there, lines)
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


def refuse_changed_inputs(run: Path, place: Path) -> None:
    """Refuse to repeat a run on other samples, or with another file of who takes part: that would say nothing of this
    machine. `place` holds the settings of the repetition, which finds there the federation that is made here.

    Raises:
        BadInput: if they have changed since, or cannot be read."""
    result = run_status.read_outcome(run).result or {}
    config = resolve(run_status.read_settings(place))
    files = list_client_files(config)
    with explain_relative_paths(config, files):
        federation = Federation(prepare_federation(config.data, config.seed))
        now = hash_client_files(config)
    # runs of older versions may lack both
    if isinstance(samples := result.get("federation"), str):
        refuse_other_samples(federation, samples, config, f"{run} was finished (or what reads and divides them): its "
                             "clients held other samples, so a repetition says nothing of this machine")
    then = result.get("files")
    for name in files:
        if isinstance(then, dict) and now[name] != then.get(name, now[name]):
            raise BadInput(f"{name} = {files[name]} has changed since {run} was finished; put back what it was")


def find_code_changes(run: Path) -> list[str]:
    """Return a line that names the files of the run's own code that were changed since, if there are any."""
    result = run_status.read_outcome(run).result or {}
    then = result.get("own_code")
    if not isinstance(then, dict):
        return []
    config = resolve(run_status.read_settings(run))
    with explain_relative_paths(config):
        now = fingerprint_code(config)
    return warn_of_changes(list_changes(then, now, int(result["rounds"])), f"{run} was finished")


def compare_evaluations(there: list[JsonObject], here: list[JsonObject]) -> tuple[str, int]:
    """Compare the losses of two runs of the same digest; return what to tell the user, and the exit code. The digest is
    of the final states, and a loss is what an evaluation found."""
    off = compute_loss_differences(there, here)
    wrong = find_wrong_round(off)
    if wrong is not None:
        return (f"WRONG: the same digest, but in round {wrong} the losses are {off[wrong]:.0e} apart: the "
                "evaluation differs, by its settings, its code or a library", errors.FAILED)
    return "the same digest: this machine computes the final states of the run bit for bit", errors.FINISHED


def compute_loss_differences(there: list[JsonObject], here: list[JsonObject]) -> dict[int, float]:
    """Return the relative differences of the losses of two runs, by round; rounds in which the first one has no finite
    loss are left out."""
    losses = {line["round"]: line["loss"] for line in here}
    return {line["round"]: compute_relative_difference(line["loss"], losses[line["round"]]) for line in there
            if line["round"] in losses and line.get("loss") is not None and math.isfinite(line["loss"])}


def find_wrong_round(off: dict[int, float]) -> int | None:
    """Return the first round whose losses are further apart than rounding explains; None if there is none."""
    return next((t for t, value in off.items() if value > RERUN_ROUNDING), None)


def compare_losses(there: list[JsonObject], here: list[JsonObject]) -> tuple[str, int]:
    """Compare the losses of two runs of unlike digests round by round; return what to tell the user, and the exit
    code."""
    off = compute_loss_differences(there, here)
    if not off:
        return "another digest, and metrics.jsonl of the run has no losses to compare", errors.FAILED
    wrong = find_wrong_round(off)
    if wrong is None:
        return (f"another digest, and losses that agree within rounding in {len(off)} evaluated rounds (at most "
                f"{max(off.values()):.0e} apart): this machine is fine, it adds up in another order", errors.FINISHED)
    first = min(off)
    why = ("settings, data or code are others than the run's" if wrong == first else
           f"in round {first} only {off[first]:.0e}. Either the code is another than the run's, or a choice, such as "
           "that of a cluster, turned on a last bit: compare several seeds")
    return f"WRONG: in round {wrong} the losses are {off[wrong]:.0e} apart; {why}", errors.FAILED
