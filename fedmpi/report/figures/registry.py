"""The figures that a report can hold. A function joins by a decorator, wherever in this package it stands."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A function that draws a figure; the decorators return it as it is.
Draw = TypeVar("Draw", bound="Callable[..., Figure | None]")

# drawn by `draw(results)`, once
OF_RESULTS: list[Entry] = []
# drawn by `draw(results, column)`, once for each column of a job
OF_COLUMN: list[Entry] = []
# drawn by `draw(run)`, for the first finished seed of each cell
OF_RUN: list[Entry] = []


class Entry(NamedTuple):
    """One figure of a report."""
    # the name of its files
    name: str
    # {measure} stands for what the runs learned, such as "accuracy", and {evaluated} for "test accuracy", say
    caption: str
    # returns None if the runs have no data for it
    draw: Callable[..., Figure | None]


def figure_of_results(name: str, caption: str) -> Callable[[Draw], Draw]:
    """Add the decorated `draw(results)` to the figures that a report has once."""
    def add(draw: Draw) -> Draw:
        register(OF_RESULTS, Entry(name, caption, draw))
        return draw
    return add


def figure_of_column(name: str, caption: str) -> Callable[[Draw], Draw]:
    """Add the decorated `draw(results, column)` to the figures that each column of a job gets."""
    def add(draw: Draw) -> Draw:
        register(OF_COLUMN, Entry(name, caption, draw))
        return draw
    return add


def figure_of_run(name: str, caption: str) -> Callable[[Draw], Draw]:
    """Add the decorated `draw(run)` to the figures that single runs get."""
    def add(draw: Draw) -> Draw:
        register(OF_RUN, Entry(name, caption, draw))
        return draw
    return add


def register(entries: list[Entry], entry: Entry) -> None:
    """Append an entry. Raises ValueError if the name is taken, as files would be replaced."""
    if any(entry.name == other.name for other in [*OF_RESULTS, *OF_COLUMN, *OF_RUN]):
        raise ValueError(f"two figures are called {entry.name!r}; give one of them another name")
    entries.append(entry)
