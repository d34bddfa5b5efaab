"""Early stopping: which round of a run is its best, and whether the run ends before its last round.

The mean accuracy (or error) of the clients on their validation samples decides both. The best round on test samples, as
papers print it, is reported under that name and decides nothing. All follows from the lines of metrics.jsonl alone, so
that a run that was killed, or goes on elsewhere, decides the same."""
from __future__ import annotations

import numpy as np

from fedmpi.config.schema import Config
from fedmpi.data.federation import Federation
from fedmpi.errors import BadInput
from fedmpi.faults import find_honest
from fedmpi.json_values import JsonObject
from fedmpi.server.metrics import find_best_line
from fedmpi.storage.run_status import AT_BEST_VALIDATION, BEST_ON, is_evaluated
from fedmpi.task import Task, find_task


def refuse_validation_settings(config: Config, federation: Federation) -> None:
    """Refuse settings that ask for validation samples that no honest client has, or that are evaluated too late.

    Raises:
        BadInput: with the setting and a remedy."""
    asked, n = {"evaluate.on": config.evaluate.on, "stop.on": config.stop and config.stop.on}, len(federation.sizes)
    honest = find_honest(config.attack, n, config.seed)
    for name in (name for name, on in asked.items() if on == "validation"):
        if config.data.comes_split:
            raise BadInput(f"{name} = validation, but the data come split, without a validation part: choose another "
                           "data.partition (natural: or set its split to drawn), and three shares for data.split")
        if not config.data.validates:
            raise BadInput(f"{name} = validation, but data.split has no validation share: give three shares")
        if not federation.counts[honest, 1].any():
            raise BadInput(f"{name} = validation, but no honest client has enough samples for a validation part: raise "
                           "its share in data.split, or lower data.clients")
    if config.stop and not config.evaluate.every:
        raise BadInput(f"stop.patience = {config.stop.patience}, but evaluate.every = 0 evaluates the last round "
                       "alone: set evaluate.every to 1 or more")


def name_validation_key(task: Task) -> str:
    """Return the key of the mean on validation samples, in lines of rounds that are evaluated on test samples, too."""
    return f"{task.key}_validation"


def find_task_of(lines: list[JsonObject]) -> Task:
    """Return what a run learns, by its last evaluated line: the others do not tell."""
    return find_task(next((line for line in reversed(lines) if is_evaluated(line)), ()))


def find_best_validation_line(lines: list[JsonObject], measure: str = "") -> JsonObject | None:
    """Return the line of the best round on validation samples, the first of equals; None if no round is known.

    Args:
        measure: the key that says how good a round is; "": that of `name_validation_key`."""
    task = find_task_of(lines)
    key = measure or name_validation_key(task)
    known = [line for line in lines if line.get(key) is not None and line[key] == line[key]]
    return max(known, key=lambda line: task.score(line[key])) if known else None


def explain_early_stop(config: Config, lines: list[JsonObject], rounds_done: int) -> str:
    """Return a line that says why early stopping ends a run before its last round, "" if the run goes on.

    Only rounds that `evaluate.every` asks for count: not those of embeddings, not a round that was the last one until
    `rounds` was raised, and not the one before the first, which some methods have.

    Args:
        lines: the lines of metrics.jsonl.
        rounds_done: rounds finished."""
    if config.stop is None or rounds_done >= config.rounds:
        return ""
    task, patience = find_task_of(lines), config.stop.patience
    measure = name_validation_key(task) if config.evaluate.on == "test" else task.key
    regular = [line for line in lines
               if measure in line and line["round"] and line["round"] % config.evaluate.every == 0]
    best = find_best_validation_line(regular, measure)
    if best is None or regular[-1]["round"] - best["round"] < patience:
        return ""
    return (f"ended after round {rounds_done} of {config.rounds}: none since round {best['round']} was better on "
            f"validation samples (stop.patience = {patience})\n")


def list_series(config: Config, lines: list[JsonObject]) -> JsonObject:
    """Return what result.json says of all evaluated rounds.

    Args:
        lines: the lines of metrics.jsonl of evaluated rounds."""
    best, on, task = find_best_line(lines), BEST_ON + config.evaluate.on, find_task(lines[-1])
    weighted, choose = task.weighted, np.fmax if task.larger_is_better else np.fmin
    found = {f"{task.measure}{on}": best[task.key], "best_round": best["round"],
             f"{weighted}{on}": float(choose.reduce([line[weighted] for line in lines])),
             f"{task.measure}_last_ten": float(np.mean([line[task.key] for line in lines[-10:]]))}
    if line := find_best_validation_line(lines):
        found |= {f"{name}{AT_BEST_VALIDATION}": line[key] for name, key in (
            (task.measure, task.key), (weighted, weighted), (task.second, f"{task.second}_mean"))}
        found["chosen_round"] = line["round"]
    return found
