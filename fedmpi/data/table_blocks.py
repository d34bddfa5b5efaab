"""A table comes in blocks of rows: what a column of a block holds, and which of its values are refused.

Legend of shapes: n rows of a block."""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmpi.data.named_values import parse_number
from fedmpi.errors import BadInput

# What pandas calls the row numbers that it writes with a table: in CSV, in CSV that was read and written again, and in
# Parquet.
ROW_NUMBERS = re.compile(r"\s*|Unnamed: \d+|__index_level_\d+__")
# So many rows are read at once.
TABLE_BLOCK_ROWS = 50_000


class TableBlock(NamedTuple):
    """Some rows of a table: from which file they are, how many come before them there, and their columns. A column is
    an array of numbers (n,) or (n, k), or of objects (n,): texts, bytes of pictures, or None where a value is
    missing. `rows` (n,) are their places in the block of which they were chosen; None: all of it."""
    path: Path
    first: int
    columns: Mapping[str, np.ndarray]
    rows: np.ndarray | None = None

    def choose_rows(self, wanted: np.ndarray) -> TableBlock:
        """Return the rows for which `wanted` (n,) is true."""
        chosen = {name: values[wanted] for name, values in self.columns.items()}
        return self._replace(columns=chosen, rows=np.flatnonzero(wanted))


def refuse_row_numbers(features: Iterable[str], path: Path) -> None:
    """Raise BadInput if a column that would be a feature because no setting names it has the name of row numbers, by
    which the classes of a sorted table can be told."""
    for name in features:
        if ROW_NUMBERS.fullmatch(name):
            raise BadInput(f"{path}: the column {name!r} is called like the row numbers that pandas writes, and would "
                           "be a feature; save the table without them (index=False), or name the features by "
                           "data.features")


def require_texts(block: TableBlock, name: str, blank: bool = True) -> np.ndarray:
    """Return a column as texts, objects (n,). Raises BadInput for the first value that is missing.

    Args:
        blank: whether a text of blanks is a value. None and the empty text are always missing."""
    values = block.columns[name]
    if values.dtype != object:
        if values.ndim > 1 or values.dtype.kind == "f" and not np.isfinite(values).all():
            row = 0 if values.ndim > 1 else int(np.argmin(np.isfinite(values)))
            raise BadInput(f"{describe_row(block, row, name)} is neither a text nor a whole number; "
                           "repair or remove the row")
        if values.dtype.kind == "f" and (values == np.rint(values)).all() and (np.abs(values) < 2 ** 63).all():
            values = values.astype(np.int64)
        return values.astype(str).astype(object)
    texts = np.empty(len(values), object)
    for row, value in enumerate(values):
        if isinstance(value, list | dict):
            raise BadInput(f"{describe_row(block, row, name)} is a {type(value).__name__}, and neither a text nor a "
                           "number; write one text for each row")
        try:
            texts[row] = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            raise BadInput(f"{describe_row(block, row, name)} is not UTF-8 ({error.reason} at byte {error.start}); "
                           "write texts, or bytes of texts in UTF-8") from None
        if texts[row] in (None, "") or not blank and not str(texts[row]).strip():
            raise BadInput(f"{describe_row(block, row, name)} is missing; fill it in, or remove the row")
    return texts


def require_numbers(block: TableBlock, name: str) -> np.ndarray:
    """Return a column as numbers (n, k). Raises BadInput for the first value that is none."""
    values = block.columns[name]
    if values.dtype == object:
        values = np.array([parse_number(value) for value in values])
    good = np.isfinite(values) if values.dtype.kind == "f" else np.ones(values.shape, bool)
    values = values.reshape(len(values), -1)
    if not good.all():
        row = int(np.argmin(good.reshape(len(values), -1).all(1)))
        value = block.columns[name][row]
        if value is None or np.ndim(value) == 0 and str(value) in ("", "nan", "None"):
            raise BadInput(f"{describe_row(block, row, name)} is missing; fill it in, remove the row, or leave the "
                           "column out by data.features")
        raise BadInput(f"{describe_row(block, row, name)} is {str(value)[:40]!r}, no finite number; correct it, name "
                       "the columns of numbers by data.features, or columns of texts by data.categories")
    return values


def require_targets(block: TableBlock, name: str) -> np.ndarray:
    """Return a column as numbers (n,). Raises BadInput if a row holds none, or a list of several."""
    values = require_numbers(block, name)
    if values.shape[1] != 1:
        raise BadInput(f"{block.path}: column {name!r} holds {values.shape[1]} numbers in each row, and data.label "
                       "takes a column of one; write each number to a column of its own, and name one of them")
    return values[:, 0]


def locate_picture(block: TableBlock, value: object) -> object:
    """Return where a picture is: a path from the folder of the table, or its bytes as they are."""
    return block.path.parent / value if isinstance(value, str) else value


def describe_row(block: TableBlock, row: int, column: str) -> str:
    """Return where a value stands, the start of a message; rows count from 1, without the header."""
    place = row if block.rows is None else int(block.rows[row])
    return f"{block.path}: row {block.first + place + 1}, column {column!r}"
