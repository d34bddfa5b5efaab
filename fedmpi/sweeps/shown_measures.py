"""Refuse a job whose tables show what none of its runs measures, before hours are spent on them."""
from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import product

from fedmpi import registry
from fedmpi.config.evaluation import name_column
from fedmpi.config.schema import Config
from fedmpi.errors import BadInput
from fedmpi.storage.run_status import AT_BEST_VALIDATION, BEST_ON, RENAMED_MEASURES, find_new_name
from fedmpi.task import TASKS

# the measures that result.json has of the round that is best on validation samples
CHOSEN = tuple(name for task in TASKS.values() for name in (task.measure, task.weighted, task.second))


def check_measures(main: str, further: Collection[str]) -> None:
    """Raise BadInput for a measure that has another name now, that no run has, or that a job names twice.

    Args:
        main: the job's `measure`.
        further: those of its `also`."""
    for name in (main, *further):
        if name in RENAMED_MEASURES:
            raise BadInput(f"measure {name!r} is called {find_new_name(name, 'test')} now: its round is the best on "
                           f"test samples; accuracy{AT_BEST_VALIDATION} chooses the round on validation samples")
        if name.endswith(AT_BEST_VALIDATION) and name.removesuffix(AT_BEST_VALIDATION) not in CHOSEN:
            raise BadInput(f"measure {name!r} is taken by no run; of the round that is best on validation samples "
                           f"there are {', '.join(f'{known}{AT_BEST_VALIDATION}' for known in CHOSEN)}")
    if main in further:
        raise BadInput(f"also.{main}: this is the job's measure already; leave it out, and set what is published of it "
                       "in `published`")


def refuse_unchosen(measures: Iterable[str], settings: Config, where: str) -> None:
    """Raise BadInput if a table is to show the round that is best on samples that a run does not evaluate, or, in the
    round that is best on validation samples, a measure of test samples that it does not evaluate."""
    data, on = settings.data, settings.evaluate.on
    for measure in measures:
        body, ending, part = measure.rpartition(BEST_ON)
        if ending and part in ("test", "validation") and part != on:
            raise BadInput(f"{where}: measure {measure} is of {part} samples, and evaluate.on = {on}: set measure: "
                           f"{body}{BEST_ON}{on}")
        if not measure.endswith(AT_BEST_VALIDATION):
            continue
        if not data.validates:
            raise BadInput(f"{where}: measure {measure} chooses the round on validation samples, and data.split = "
                           f"{list(data.split)} has no share of them: set data.split: [0.6, 0.15, 0.25], or measure: "
                           f"{TASKS[data.task].measure}{BEST_ON}test")
        if on != "test":
            raise BadInput(f"{where}: measure {measure} is of test samples, and evaluate.on = validation uses none: "
                           f"set measure: {TASKS[data.task].measure}{BEST_ON}validation")


def refuse_measures_of_other_task(measures: Iterable[str], settings: Config, where: str) -> None:
    """Raise BadInput if a table is to show accuracies of runs that predict numbers, or errors of runs that predict
    classes."""
    task, further = TASKS[settings.data.task], [f"{name_column(name)}_" for name in settings.evaluate.measures]
    names = [(name, own) for other in TASKS.values() if other is not task
             for name, own in ((other.measure, task.measure), (other.second, task.second))]
    for measure, (name, own) in product(measures, names):
        if measure.startswith(f"{name}_") and not any(map(measure.startswith, further)):
            raise BadInput(f"{where}: measure {measure} is taken by no run with data.task = {task.name}: take "
                           f"{own}{measure.removeprefix(name)}")


def refuse_unasked(measures: Iterable[str], settings: Iterable[Config], where: str) -> None:
    """Raise BadInput if a table is to show one of the measures that are taken only if `evaluate.measures` names them,
    and no run does so."""
    asked = {name_column(name) for config in settings for name in config.evaluate.measures}
    for measure in measures:
        name, _, ending = measure.rpartition("_")
        if ending in ("mean", "undefined") and name not in asked and name in registry.list_available("measures"):
            raise BadInput(f"{where}: measure {measure} is taken by no run: set evaluate.measures: [{name}]")
