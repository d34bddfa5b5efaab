"""The rows of a job: each is a method's name or a mapping of settings, in which it may refer to another row."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.settings import shorten_value

# entries of a row that are not settings of its runs: the row with as many steps, and the row of which it is a variant
EQUAL, VARIANT = "equal_steps", "variant_of"

RowsOfJob = Mapping[str, "str | JsonObject | None"]
T = TypeVar("T")


def check_rows(rows: RowsOfJob) -> None:
    """Raise BadInput unless every row is a method's name or a mapping, and the rows that it names exist: for
    `equal_steps` one without equal_steps, for `variant_of` one with neither."""
    for row, settings in rows.items():
        if not isinstance(settings, str | dict | None):
            raise BadInput(f"rows.{row} = {shorten_value(settings)}: give a method's name, or a mapping of settings")
    for row in rows:
        for entry in (EQUAL, VARIANT):
            other = find_other_row(rows, row, entry)
            if not isinstance(other, str | None):
                raise BadInput(f"rows.{row}.{entry} = {shorten_value(other)}: give the name of a row")
            if other is not None and (other not in rows or any(
                    find_other_row(rows, other, e) is not None for e in {entry, EQUAL})):
                has = EQUAL if entry == EQUAL else f"{VARIANT} or {EQUAL}"
                raise BadInput(f"rows.{row}.{entry} = {other}: name a row of this job that has no {has} itself; "
                               f"its rows: {', '.join(rows)}")


def find_other_row(rows: RowsOfJob, row: str, entry: str) -> str | None:
    """Return the row that a row names under `entry`; None if it names none."""
    settings = rows[row]
    return settings.get(entry) if isinstance(settings, dict) else None


def list_sources(rows: RowsOfJob, row: str) -> list[str]:
    """Return the rows whose settings and cells a row has, of which later ones win: that of which it is a variant, and
    itself."""
    base = find_other_row(rows, row, VARIANT)
    return [row] if base is None else [base, row]


def expand_method_name(row: str | JsonObject | None) -> JsonObject:
    """Return the settings of a row, which may be the bare name of a method."""
    settings = {"method": row} if isinstance(row, str) else row or {}
    return {key: value for key, value in settings.items() if key not in (EQUAL, VARIANT)}


def find_variants(rows: RowsOfJob) -> dict[str, str]:
    """Return the rows that are variants, and the row of which each is one."""
    return {row: base for row in rows if (base := find_other_row(rows, row, VARIANT)) is not None}


def share_with_variants(values: Mapping[str, T], rows: RowsOfJob) -> dict[str, T]:
    """Return what is given by row, where every variant has what its row has."""
    return {**values, **{row: values[base] for row, base in find_variants(rows).items() if base in values}}


def refuse_variants(values: Mapping[str, object], rows: RowsOfJob, where: str) -> None:
    """Raise BadInput if a job gives a variant a published number, or its length."""
    for row, base in find_variants(rows).items():
        if row in values:
            raise BadInput(f"{where}.{row}: this row is a variant of {base} and has what is published of that row; "
                           f"remove it here, or variant_of from the row")
