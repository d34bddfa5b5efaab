"""The figures that a report can hold. A function joins by a decorator, wherever in this package it stands."""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

OF_COLUMN: list[Entry] = []      # drawn by `draw(results, column)`, once for each column of a job
OF_RUN: list[Entry] = []         # drawn by `draw(run)`, for the first seed of each cell


class Entry(NamedTuple):
    """One figure of a report."""
    name: str           # of its files
    caption: str
    draw: Callable      # returns a Matplotlib figure, or None if the runs have no data for it


def figure_of_column(name: str, caption: str) -> Callable:
    """Add the decorated `draw(results, column)` to the figures that each column of a job gets."""
    return lambda draw: register(OF_COLUMN, Entry(name, caption, draw))


def figure_of_run(name: str, caption: str) -> Callable:
    """Add the decorated `draw(run)` to the figures that single runs get."""
    return lambda draw: register(OF_RUN, Entry(name, caption, draw))


def register(entries: list[Entry], entry: Entry) -> Callable:
    """Append an entry and return its function. Raises ValueError if the name is taken, as files would be replaced."""
    if any(entry.name == other.name for other in [*OF_COLUMN, *OF_RUN]):
        raise ValueError(f"two figures are called {entry.name!r}; give one of them another name")
    entries.append(entry)
    return entry.draw
