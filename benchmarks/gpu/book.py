"""Fill the book of a day: see fedmpi/report/gpu_day.py for its sections.

A step hands over notes: (section, values). In a section of BOOK_ROWS a note adds a row; in one of FACTS it is
merged."""
from __future__ import annotations

import json
import math
from pathlib import Path

from fedmpi.report.gpu_day import BOOK_ROWS, merge_facts
from fedmpi.storage.atomic import atomic


def note(book: dict, step: str, section: str, values: dict) -> None:
    """Add a step's note to the book."""
    if section in BOOK_ROWS:
        book[section].append({"step": step, **plain(values)})
    else:
        merge_facts(book[section], plain(values))


def plain(value):
    """Return a copy that JSON can hold: numbers that are not finite become None."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def store(book: dict, path: Path) -> None:
    """Write a book; the file always holds either this one or the one before, whatever happens."""
    with atomic(path) as part:
        part.write_text(json.dumps(book, indent=1, allow_nan=False) + "\n")
