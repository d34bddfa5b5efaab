"""What became of a planned run, read from its folder alone: a sweep can be stopped and continued at any point."""
from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import yaml

from fedmpi import config
from fedmpi.config import Loader
from fedmpi.errors import BadInput
from fedmpi.sweep.job import Planned

RESULT, METRICS, SETTINGS = "result.json", "metrics.jsonl", "config.yaml"


class Outcome(NamedTuple):
    state: str            # waiting, begun, finished
    round: int
    accuracy: float       # of the last evaluated round, nan where there is none
    result: dict | None


def of(run: Planned) -> Outcome:
    """Return how far a run came. Raises BadInput where its folder holds a run with other settings."""
    if (run.folder / SETTINGS).exists():
        refuse_other(run)
    lines = metrics(run.folder)
    last = lines[-1] if lines else {}
    number, accuracy = last.get("round", 0), last.get("accuracy_mean", float("nan"))
    if (run.folder / RESULT).exists():
        result = json.loads((run.folder / RESULT).read_text())
        if result["rounds"] >= config.load(str(run.config), run.overrides).rounds:
            return Outcome("finished", result["rounds"], result["accuracy_mean"], result)
    return Outcome("begun" if lines else "waiting", number, accuracy, None)


def metrics(folder: Path) -> list[dict]:
    """Return the evaluated rounds so far; a line that is half written is left out."""
    lines = []
    if (folder / METRICS).exists():
        for text in (folder / METRICS).read_text().splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                break
    return lines


def refuse_other(run: Planned) -> None:
    """A folder that holds a run with other settings is not this run's, though it has its name."""
    try:      # resolved again: a setting that is newer than the run had its default
        there = config.plain(config.resolve(yaml.load((run.folder / SETTINGS).read_text(), Loader)))
    except (BadInput, yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError):
        there = {}
    wanted = config.plain(config.load(str(run.config), run.overrides))
    differ = sorted(key for key in wanted if key != "rounds" and wanted[key] != there.get(key))
    if differ:
        raise BadInput(f"{run.folder} holds a run with other settings ({', '.join(differ)}) than {run.name} of this "
                       "job; remove it, or give the sweep another --out")
