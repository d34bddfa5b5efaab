"""Refuse a job whose tables show what none of its runs measures, before hours are spent on them."""
from __future__ import annotations

from collections.abc import Collection, Iterable

from fedmpi import registry
from fedmpi.config.evaluation import name_column
from fedmpi.config.schema import Config
from fedmpi.errors import BadInput
from fedmpi.storage.run_status import AT_BEST_VALIDATION, RENAMED_MEASURES, find_new_name


def check_measures(main: str, further: Collection[str]) -> None:
    """Raise BadInput for a measure that has another name now, or that a job names twice.

    Args:
        main: the job's `measure`.
        further: those of its `also`."""
    for name in (main, *further):
        if name in RENAMED_MEASURES:
            raise BadInput(f"measure {name!r} is called {find_new_name(name, 'test')} now: its round is the best on "
                           f"test samples; accuracy{AT_BEST_VALIDATION} chooses the round on validation samples")
    if main in further:
        raise BadInput(f"also.{main}: this is the job's measure already; leave it out, and set what is published of it "
                       "in `published`")


def refuse_unchosen(measures: Iterable[str], settings: Config, where: str) -> None:
    """Raise BadInput if a table is to show the round that is best on validation samples, and a run has none, or
    evaluates nothing else."""
    data = settings.data
    for measure in measures:
        if not measure.endswith(AT_BEST_VALIDATION):
            continue
        if not data.validates:
            raise BadInput(f"{where}: measure {measure} chooses the round on validation samples, and data.split = "
                           f"{list(data.split)} has no share of them: set data.split: [0.6, 0.15, 0.25], or measure: "
                           f"{find_new_name('accuracy_best', 'test')}")
        if settings.evaluate.on != "test":
            raise BadInput(f"{where}: measure {measure} is of test samples, and evaluate.on = validation uses none: "
                           f"set measure: {find_new_name('accuracy_best', 'validation')}")


def refuse_unasked(measures: Iterable[str], settings: Iterable[Config], where: str) -> None:
    """Raise BadInput if a table is to show one of the measures that are taken only if `evaluate.measures` names them,
    and no run does so."""
    asked = {name_column(name) for config in settings for name in config.evaluate.measures}
    for measure in measures:
        name, _, ending = measure.rpartition("_")
        if ending in ("mean", "undefined") and name not in asked and name in registry.list_available("measures"):
            raise BadInput(f"{where}: measure {measure} is taken by no run: set evaluate.measures: [{name}]")
