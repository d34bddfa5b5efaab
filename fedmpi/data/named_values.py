"""Number the names in a column: classes, clients, categories."""
from __future__ import annotations

import math
import re

import numpy as np

from fedmpi.data.samples import MANY_CLASSES, SPARSEST
from fedmpi.errors import BadInput
from fedmpi.text import shorten_list

# A column with more different values than these, in more than half of the rows, does not hold classes.
FEW_CLASSES = 50
# A whole number with a point, as whoever takes a column for floats writes it.
POINTED_NUMBER = re.compile(r"(-?[0-9]+)\.0*")


class Names:
    """The different values of a column, over all blocks."""

    def __init__(self, given: list[str] | None = None) -> None:
        self.given, self.codes = given is not None, {name: i for i, name in enumerate(given or [])}

    def encode(self, values: np.ndarray, where: str) -> np.ndarray:
        """Return a number for each text (n,), equal ones for equal texts, and for 1 and 1.0. Raises BadInput, whose
        message begins with `where`, for a text that is none of the names that the file gives."""
        texts = list_texts(values)
        spelt = {text: text if text in self.codes else spell_number(text) for text in sorted(set(texts))}
        if self.given and (unknown := [name for name in spelt.values() if name not in self.codes]):
            raise BadInput(f"{where} holds {unknown[0][:40]!r}, and the first file names the classes "
                           f"{shorten_list(self.codes)}; correct it, or write all files with the same names")
        found = {text: self.codes.setdefault(name, len(self.codes)) for text, name in spelt.items()}
        return np.array([found[text] for text in texts], np.int64)

    def refuse_alike(self, where: str) -> None:
        """Raise BadInput, whose message begins with `where`, if two names differ in the blanks around them only."""
        seen: dict[str, str] = {}
        for name in self.codes:
            if not self.given and (other := seen.setdefault(spell_number(name.strip()), name)) != name:
                raise BadInput(f"{where} holds {other!r} and {name!r}, which differ in blanks only; write one of them "
                               "in all rows")

    def sort(self) -> tuple[list[str], np.ndarray]:
        """Return the texts in their order, whole numbers by size, and the place of each number that `encode` gave.

        Names that the file itself numbers keep its numbers."""
        names = list(self.codes) if self.given else sorted(self.codes, key=order_of_name)
        place = np.empty(len(names), np.int64)
        place[[self.codes[name] for name in names]] = np.arange(len(names))
        return names, place


def list_texts(values: np.ndarray) -> list[str]:
    """Return values as texts, without the zeros that fill up bytes of a fixed length. In an array of texts each would
    take as much memory as the longest one."""
    return [str(value).rstrip("\0") for value in values]


def spell_number(text: str) -> str:
    """Return a whole number without a point: 1 for 1.0. Other texts stay as they are."""
    found = POINTED_NUMBER.fullmatch(text)
    return found[1] if found else text


def order_of_name(name: str) -> tuple[bool, float, str]:
    """Return by what names are sorted: numbers by size, before other texts."""
    number = parse_number(name)
    return (True, 0., name) if math.isnan(number) else (False, number, name)


def parse_number(text: object) -> float:
    """Return the number that a text holds, nan if it is none."""
    try:
        return float(str(text))
    except ValueError:
        return math.nan


def refuse_no_classes(names: list[str], rows: int, where: str, given: bool) -> None:
    """Raise BadInput if a column of `rows` values with these different names does not hold classes."""
    broken = next((name for name in names if math.isfinite(number := parse_number(name)) and number % 1), None)
    if broken is not None and not given:
        raise BadInput(f"{where} holds {broken}; classes are whole numbers or texts; set data.task = regression if "
                       "these numbers are to be predicted")
    many = len(names) > FEW_CLASSES and 2 * len(names) > rows
    if not given and (many or len(names) > MANY_CLASSES and SPARSEST * len(names) > rows):
        raise BadInput(f"{where} has {len(names)} different values in {rows} rows; it must be the column of the class, "
                       "and not of a number or an id")
