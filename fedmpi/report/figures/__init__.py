"""The figures of a report: every function that `figure_of_results`, `figure_of_column` or `figure_of_run` decorates.

Each module is a family of figures."""
from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from fedmpi.report.figures.registry import OF_COLUMN, OF_RESULTS, OF_RUN
from fedmpi.report.file_names import make_file_part
from fedmpi.report.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Picture(NamedTuple):
    """A figure that was drawn."""
    # the name of its files
    name: str
    caption: str
    figure: Figure


# Every family registers its figures when it is imported. A page shows families by name, figures as they stand there.
for family in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{family.name}")


def draw_figures(results: Results) -> Iterator[Picture]:
    """Yield every Picture for which the runs have data so far, each under a name of its own: names of rows and columns
    may be alike as parts of a file's name (FedProx, FedProx+)."""
    taken: set[str] = set()
    for picture in draw_each_figure(results):
        numbered = (f"{picture.name}-{number}" for number in itertools.count(2))
        name = next(name for name in itertools.chain([picture.name], numbered) if name not in taken)
        taken.add(name)
        yield picture._replace(name=name)


def draw_each_figure(results: Results) -> Iterator[Picture]:
    """Yield every Picture for which the runs have data so far; some may have the same name."""
    for name, caption, function in OF_RESULTS:
        figure = function(results)
        if figure:
            yield Picture(name, fill_caption(caption, results), figure)
    for name, caption, function in OF_COLUMN:
        for column in results.columns:
            figure = function(results, column)
            if figure:
                where = f"{column}: " if len(results.columns) > 1 else ""
                yield Picture(f"{name}-{make_file_part(column)}", where + fill_caption(caption, results), figure)
    for name, caption, function in OF_RUN:
        for run in results.list_examples():
            figure = function(run)
            if figure:
                of = f"{make_file_part(run.row)}-{make_file_part(run.column)}"
                yield Picture(f"{name}-{of}", f"{run.name}: {fill_caption(caption, results)}", figure)


def fill_caption(caption: str, results: Results) -> str:
    """Return a caption with what the runs learned in place of {measure}, on which samples in place of {evaluated}."""
    text = caption.format(measure=results.task.title, evaluated=results.evaluated)
    return text[:1].upper() + text[1:]
