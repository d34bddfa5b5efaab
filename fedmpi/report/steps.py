"""The gradient steps behind the numbers of a table, without which rows cannot be compared."""
from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from typing import Protocol

from fedmpi.commands.planned_steps import format_steps
from fedmpi.engines.step_counter import KINDS
from fedmpi.json_values import JsonObject

UNCOUNTED = "steps are not known of {}: runs of fedmpi 0.1 did not count them; run them again"
STEPS_EXPLAINED = (
    "steps: gradients behind a client's evaluated model, mean over clients; two models side by side take two")
# Rows did equal work if their steps differ by less than this part of the most steps.
EQUAL_WORK = .01


def compute_mean_steps_of_cell(found: list[JsonObject | None]) -> dict[str, float] | None:
    """Return the steps by kind, mean over the finished runs of a cell; None if one of them did not count steps."""
    counted = [result.get("steps_so_far") for result in found if result]
    known = [steps for steps in counted if steps is not None]
    if not known or len(known) < len(counted):
        return None
    kinds = dict.fromkeys(kind for steps in known for kind in steps)
    return {kind: statistics.fmean(steps.get(kind, 0) for steps in known) for kind in kinds}


def show_steps(steps: dict[str, float] | None) -> str:
    """Return all steps of a cell as a text."""
    return "-" if steps is None else format_steps(sum(steps.values()))


class CountedCell(Protocol):
    """A cell of a table: see report/tables.py."""
    @property
    def values(self) -> list[float]: """Return its measures."""
    @property
    def steps(self) -> dict[str, float] | None: """Return its steps by kind; None if they were not counted."""


class CountedTable(Protocol):
    """A table of measures: see report/tables.py."""
    @property
    def rows(self) -> list[str]: """Return the names of its rows."""
    @property
    def columns(self) -> list[str]: """Return the names of its columns."""
    @property
    def cells(self) -> Mapping[tuple[str, str], CountedCell]: """Return its cells, by row and column."""
    @property
    def counted(self) -> Collection[str]: """Return the columns whose steps were counted."""


def list_notes(table: CountedTable) -> list[str]:
    """Return the lines below a table: columns without steps, and rows of unequal work."""
    lines = [STEPS_EXPLAINED] if table.counted else []
    if without := [name for c in table.columns if (name := name_uncounted(table, c))]:
        lines.append(UNCOUNTED.format(", ".join(without)))
    return lines + [line for c in table.columns if c in table.counted and (line := describe_unequal_work(table, c))]


def name_uncounted(table: CountedTable, column: str) -> str:
    """Name a column that has rows whose steps were not counted, and these rows unless all are; "" if there are none."""
    rows = [row for row in table.rows if table.cells[row, column].values and table.cells[row, column].steps is None]
    return "" if not rows else f"{column} ({', '.join(rows)})" if column in table.counted else column


def describe_unequal_work(table: CountedTable, column: str) -> str:
    """Name the rows of a column that made the fewest and the most steps; "" if all did equal work."""
    totals = {row: sum(steps.values()) for row in table.rows if (steps := table.cells[row, column].steps) is not None}
    least, most = min(totals, key=totals.__getitem__), max(totals, key=totals.__getitem__)
    if totals[most] - totals[least] <= EQUAL_WORK * totals[most]:
        return ""
    return (f"{column}: unequal work, from {format_steps(totals[least])} steps ({least}) to "
            f"{format_steps(totals[most])} ({most})")


def format_for_csv(number: float | None) -> str:
    """Return a number with all digits that mean something, "" for None and nan."""
    return "" if number is None or number != number else f"{number:.10g}"


def list_csv_steps(made: dict[str, float] | None) -> list[str]:
    """Return all steps of a cell, and those of each kind, as texts."""
    return [""] * (1 + len(KINDS)) if made is None else [
        format_for_csv(n) for n in (round(sum(made.values()), 4), *(round(made.get(kind, 0), 4) for kind in KINDS))]
