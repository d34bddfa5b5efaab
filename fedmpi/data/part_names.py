"""The words by which files, folders and columns name the parts of a data set."""
from __future__ import annotations

from collections.abc import Collection, Sequence

from fedmpi.errors import BadInput
from fedmpi.text import shorten_list

# Words, in small letters, and the part that they stand for.
PART_WORDS = {"train": "train", "training": "train", "validation": "validation", "valid": "validation",
              "val": "validation", "dev": "validation", "test": "test", "testing": "test", "eval": "test",
              "evaluation": "test"}


def refuse_forgotten_parts(there: Collection[str], train: Sequence[str], test: Sequence[str], where: str) -> None:
    """Raise BadInput if a column says `Test` or `val`, whose rows would be left out without a word, and a setting names
    that part in another way.

    Args:
        there: what the column says in any row
        train: data.train_parts
        test: data.test_parts
        where: the beginning of the message"""
    for setting, names in (("train_parts", train), ("test_parts", test)):
        meant = {PART_WORDS.get(name.lower(), name.lower()): name for name in names}
        for name in sorted(set(there) - {*train, *test}):
            if word := meant.get(PART_WORDS.get(name.strip().lower(), name.strip().lower())):
                others = [part for part in names if part != word or part in there]
                raise BadInput(f"{where} has the parts {shorten_list(sorted(there))}, and the rows of {name!r} would "
                               f"be left out, for data.{setting} = {list(names)} has {word!r} for it; set "
                               f"data.{setting}: [{', '.join([*others, name])}]")
