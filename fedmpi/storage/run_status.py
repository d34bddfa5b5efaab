"""What became of a run, read from what it left: its folder, and FOLDER.txt beside it, what its job printed.

Sweeps, job arrays (array.py), `fedmpi summary`, `report` and `compare` all ask here."""
from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import NamedTuple

from fedmpi.config.evaluation import name_column
from fedmpi.config.load import parse_yaml, read_yaml
from fedmpi.config.old_names import rename_settings
from fedmpi.errors import BadInput
from fedmpi.json_values import Json, JsonObject, flatten_settings
from fedmpi.own_code.changes import describe_accepted
from fedmpi.paths import describe_unreadable, is_readable
from fedmpi.storage import run_files
from fedmpi.storage.evidence import choose_words, decide_state, gather_evidence
from fedmpi.storage.listing import holds_checkpoint
from fedmpi.storage.older_versions import add_missing_settings
from fedmpi.storage.seal import Flaw, open_regular, suggest_remedy
from fedmpi.task import CLASSIFICATION, TASKS, find_task

# endings of keys of result.json: in the best round on the part that follows; on test samples, in the round that is best
# on validation samples
BEST_ON, AT_BEST_VALIDATION = "_best_on_", "_at_best_validation"
# Measures under the names that 0.1 gave them; today their names end in BEST_ON and a part.
RENAMED_MEASURES = ("accuracy_best", "accuracy_weighted_best")
# What lines of metrics.jsonl have, as numbers or null, and as lists of numbers: see docs/file-formats.md.
NUMBERS_OF_A_ROUND = (
    *(task.key for task in TASKS.values()), "loss", "seconds", "participants", "mib_per_client_round", "seconds_train",
    "seconds_judge", "idle_share", "ari", "iterations", "distance")
LISTS_OF_A_ROUND = ("cluster_sizes", "cluster_sizes_all")


# What may have become of a run: its last start failed with an error, or was killed without a word; it has begun and
# goes on, or has stopped; nothing is there yet.
STATES = ("finished", "failed", "killed", "unfinished", "waiting")


class Outcome(NamedTuple):
    """How far a run came. `state` is one of STATES."""
    state: str
    # the lines of metrics.jsonl, one per round so far
    lines: list[JsonObject]
    # the result of a finished run
    result: JsonObject | None
    # how often its job has started it
    starts: int
    # the settings of the last start, as its job said them
    settings: str
    # what was said of its end, or what its job said last
    said: str
    # whether its process goes on, as far as can be told from here
    alive: bool = False

    @property
    def round(self) -> int:
        """The last round of metrics.jsonl, 0 if there is none."""
        return self.lines[-1]["round"] if self.lines else 0

    @property
    def accuracy(self) -> float:
        """Return the mean accuracy in the last evaluated round; nan if there is none, or targets are learned."""
        value = self.last_evaluated.get(CLASSIFICATION.key)
        return float("nan") if value is None else value

    @property
    def reached(self) -> str:
        """Return the mean of the main measure in the last evaluated round as text, such as 81.20 %."""
        line = self.last_evaluated
        task = find_task(line)
        return task.format(line.get(task.key))

    @property
    def last_evaluated(self) -> JsonObject:
        """The line of the last round in which clients were evaluated, {} if there is none."""
        return next(filter(is_evaluated, reversed(self.lines)), {})

    @property
    def evaluated(self) -> list[JsonObject]:
        """The lines of rounds in which clients were evaluated."""
        return list_evaluated(self.lines)

    def shorten(self) -> Outcome:
        """Return it with the first, the last evaluated and the last line alone, from which a board tells the rest."""
        kept = {id(line): line for line in (*self.lines[:1], self.last_evaluated, *self.lines[-1:]) if line}
        return self._replace(lines=[*kept.values()])

    def __str__(self) -> str:
        if self.result:
            task = find_task(self.result)
            return (f"{task.title} {task.format(self.result[task.key])} after {self.result['rounds']} rounds, "
                    f"digest {self.result['digest'][:16]}")
        return self.said


def find_seconds_before(lines: list[JsonObject]) -> float:
    """Return the seconds that a run took before its first round: some methods have a round 0."""
    return float(lines[0].get("seconds") or 0) if lines and lines[0]["round"] == 0 else 0.


def read_outcome(folder: Path, rounds: int = 0) -> Outcome:
    """Return how far the run of a folder came; it is finished when it has a result of `rounds` rounds or more, or one
    that it ended with early. A run whose result is damaged, or whose folder cannot be looked into, counts as failed,
    and `said` names the file. Else a run that is alive goes on, whatever became of a second job in its folder."""
    if not is_readable(folder):
        return Outcome("failed", [], None, 0, "", describe_unreadable(folder))
    lines, damage = read_metrics(folder), ""
    try:
        result = read_result(folder)
    except BadInput as error:
        result, damage = None, str(error)
    if result and result["rounds"] < rounds and result.get("ended") != "stop":
        result = None
    found = gather_evidence(folder, result, damage, begun=bool(lines) or holds_begun_run(folder))
    state = decide_state(found)
    return Outcome(state, lines, result, found.job.starts, found.job.settings, choose_words(found, state),
                   found.alive)


def holds_begun_run(folder: Path) -> bool:
    """Say whether a run has begun in a folder: it has left its settings or a checkpoint."""
    return (folder / run_files.CONFIG).exists() or holds_checkpoint(folder)


def read_result(folder: Path) -> JsonObject | None:
    """Return the result of a run, None before there is one. Raises BadInput where it is damaged."""
    path = folder / run_files.RESULT
    if not os.path.lexists(path):
        return None
    try:
        with open_regular(path) as file:
            result = json.loads(file.read())
        key = find_task(result).key
        if not (isinstance(result["rounds"], int) and isinstance(result["digest"], str)
                and isinstance(result[key], int | float | None)):
            raise ValueError(f"rounds, digest or {key} is of another type")
        steps = result.get("steps_so_far") or {}
        if not (isinstance(steps, dict) and all(isinstance(n, int | float) for n in steps.values())):
            raise ValueError("steps_so_far is of another type")
    except PermissionError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); {suggest_remedy(error)}") from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError, Flaw) as error:
        remedy = ("remove it, and continue the run with --resume auto: it is written again" if holds_checkpoint(folder)
                  else "put a copy of it back, or start a new run with another --out, since no checkpoint is left")
        raise BadInput(f"{path} is damaged ({type(error).__name__}: {error}); {remedy}") from None
    old = [key for key in RENAMED_MEASURES if key in result]
    on = read_settings(folder).get("evaluate", {}).get("on", "test") if old else ""
    return result | {find_new_name(key, on): result.pop(key) for key in old}


def find_new_name(key: str, on: str) -> str:
    """Return what a measure that 0.1 named is called now; `on` is the part that its run was evaluated on."""
    return f"{key.removesuffix('_best')}{BEST_ON}{on}"


def list_accepted_changes(found: Outcome) -> list[str]:
    """Return a line for each change of the user's own code that a finished run accepted between two starts."""
    changes = (found.result or {}).get("accepted_code_changes")
    return describe_accepted(changes) if isinstance(changes, list) else []


def describe_best(result: JsonObject) -> str:
    """Say what a run reached: in the round that was chosen on validation samples, else in its best one, or that it was
    not measured, which is null or nan."""
    task = find_task(result)
    value = result.get(f"{task.measure}{AT_BEST_VALIDATION}")
    if value is not None and value == value:
        return f"{task.format(value)} in round {result['chosen_round']}, chosen on validation samples"
    found = {on: result[key] for on in ("test", "validation") if (key := f"{task.measure}{BEST_ON}{on}") in result}
    on, best = next(iter(found.items()), ("", None))
    if on and (best is None or best != best):
        return f"no value on {on} samples"
    return f"best {task.format(best)}" + (f" in round {result['best_round']}" if "best_round" in result else "")


def read_metrics(folder: Path) -> list[JsonObject]:
    """Return the rounds so far, up to the first line that is half written or damaged."""
    lines: list[JsonObject] = []
    try:
        with open_regular(folder / run_files.METRICS) as file:
            texts = file.read().decode(errors="replace").splitlines()
    except (OSError, Flaw):
        return []
    for text in texts:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            break
        if not is_round(line):
            break
        lines.append(line)
    return lines


def is_round(line: object) -> bool:
    """Say whether a line of metrics.jsonl is one of a round, with numbers where they belong.

    What a method of the user's own has reported may be of any kind."""
    return (isinstance(line, dict) and isinstance(line.get("round"), int)
            and all(isinstance(line.get(key), int | float | None) for key in NUMBERS_OF_A_ROUND)
            and all(isinstance(value, int | float | None) for key, value in line.items() if key.startswith("lam_"))
            and all(is_list_of_numbers(line.get(key, [])) for key in LISTS_OF_A_ROUND))


def list_numbers(lines: list[JsonObject], key: str) -> list[float]:
    """Return a number of every line, nan where it has none."""
    return [math.nan if (value := line.get(key)) is None else value for line in lines]


def is_list_of_numbers(value: object) -> bool:
    """Say whether a value of JSON is a list of numbers."""
    return isinstance(value, list) and all(isinstance(number, int | float) for number in value)


def is_evaluated(line: JsonObject) -> bool:
    """Say whether clients were evaluated in the round of a line of metrics.jsonl."""
    return any(task.key in line for task in TASKS.values())


def list_evaluated(lines: list[JsonObject]) -> list[JsonObject]:
    """Return the lines of rounds in which clients were evaluated: others hold the facts of their round alone."""
    return [line for line in lines if is_evaluated(line)]


def read_settings(folder: Path) -> JsonObject:
    """Return the settings of a run as nested mappings. Raises BadInput where the folder holds no run."""
    path = folder / run_files.CONFIG
    try:
        values = parse_yaml(read_yaml(path))
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder} is not the folder of a run: {path.name} cannot be read "
                       f"({type(error).__name__}); give the folder that `fedmpi run` names") from None
    if not isinstance(values, dict):
        raise BadInput(f"{path} is damaged: it holds no settings")
    return add_missing_settings(rename_settings(values))


def list_further_measures(settings: JsonObject) -> list[str]:
    """Return the names of a run's further measures in metrics.jsonl, from the settings in its folder."""
    section = settings.get("evaluate")
    names = section.get("measures") if isinstance(section, dict) else None
    return [name_column(str(name)) for name in names] if isinstance(names, list) else []


def find_differences(several: list[JsonObject]) -> dict[str, list[Json]]:
    """Return the settings in which several runs differ, by dotted name: each one's value, None where it has none."""
    flattened = [flatten_settings(settings) for settings in several]
    names = dict.fromkeys(name for settings in flattened for name in settings)
    values = {name: [settings.get(name) for settings in flattened] for name in names}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found)}
