"""Published numbers in a job file: whether they belong to its cells, and how long the runs behind them were."""
from __future__ import annotations

from collections.abc import Collection, Mapping

from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject


def check_published(published: Mapping[str, JsonObject | None], rows: Collection[str], columns: Collection[str],
                    where: str) -> None:
    """Raise BadInput if a published number belongs to no cell, or is neither a number nor [mean, spread].

    Args:
        published: columns and numbers, by row.
        where: the entry of the job file that holds them."""
    for row, cells in published.items():
        unknown = [row] if row not in rows else [c for c in cells or () if c not in columns]
        if unknown:
            raise BadInput(f"{where}: {unknown[0]!r} is not among the {'columns' if row in rows else 'rows'}")
        for column, value in (cells or {}).items():
            pair = value if isinstance(value, list) else [value]
            if len(pair) != 1 + isinstance(value, list) or not all(type(v) in (int, float) for v in pair):
                raise BadInput(f"{where}.{row}.{column} = {value}: give a number, or [mean, spread]")


def list_published_rounds(given: int | dict[str, int], rows: Collection[str]) -> dict[str, int]:
    """Return the rounds behind the published numbers, by row, of the rows for which a job gives them.

    Raises BadInput if one is below 1, or belongs to no row."""
    lengths = given if isinstance(given, dict) else dict.fromkeys(rows, given)
    if unknown := [row for row in lengths if row not in rows]:
        raise BadInput(f"published_rounds: {unknown[0]!r} is not among the rows")
    if wrong := [row for row, rounds in lengths.items() if rounds < 1]:
        raise BadInput(f"published_rounds of {wrong[0]} = {lengths[wrong[0]]}: give at least 1")
    return lengths
