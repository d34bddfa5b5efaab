"""Read the official CSV files of AG News as token ids: basic English tokens, with one vocabulary for all texts."""
from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np

from fedmpi.data.samples import LARGEST_LABEL, Dataset
from fedmpi.errors import BadInput

# Every text has so many ids.
LENGTH = 200
# Marks that are tokens of their own get spaces around them, marks that only separate become spaces, and quotation marks
# are removed.
SPLIT = str.maketrans({**{mark: f" {mark} " for mark in "'.,()!?"}, ";": " ", ":": " ", '"': None})


def read_csv_files(train: Path, test: Path) -> Dataset:
    """Read two CSV files with the columns class (counted from 1), title, description. Raises BadInput."""
    rows = [read_news(path) for path in (train, test)]
    texts = [split_into_tokens(text) for part in rows for _, text in part]
    ids = make_vocabulary(texts)
    x = encode_texts(texts, ids)
    y = [np.array([label for label, _ in part], np.int64) for part in rows]
    return Dataset(x[:len(y[0])], y[0], x[len(y[0]):], y[1])


def read_news(path: Path) -> list[tuple[int, str]]:
    """List the class, counted from 0, and the text of every row. Raises BadInput."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [(int(label) - 1, " ".join(texts)) for label, *texts in csv.reader(file)]
    # A ValueError comes from a class that is not a number, from bytes that are not UTF-8 or from an empty row.
    except (OSError, ValueError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"{path}: cannot read the news ({why}); it must be CSV with the columns class (1, 2, ...), "
                       "title, description") from None
    if not rows or not all(text and 0 <= label <= LARGEST_LABEL for label, text in rows):
        raise BadInput(f"{path}: has no rows, or rows without a text or a class from 1 to {LARGEST_LABEL + 1}; it must "
                       "be CSV with the columns class, title, description")
    return rows


def split_into_tokens(text: str) -> list[str]:
    """Split a text into basic English tokens, in lower case; punctuation marks are tokens of their own."""
    return text.lower().replace("<br />", " ").translate(SPLIT).split()


def make_vocabulary(texts: list[list[str]]) -> dict[str, int]:
    """Number the tokens from 1, the most frequent first and equally frequent ones by the alphabet.

    The number 0 stands for padding and for unknown tokens."""
    counts = Counter(token for text in texts for token in text)
    return {token: i for i, token in enumerate(sorted(counts, key=lambda t: (-counts[t], t)), 1)}


def encode_texts(texts: list[list[str]], ids: dict[str, int], length: int = LENGTH) -> np.ndarray:
    """Return the ids of the first `length` tokens of every text, int32 (n, length), padded with 0."""
    x = np.zeros((len(texts), length), np.int32)
    for row, text in zip(x, texts, strict=True):
        mine = [ids.get(token, 0) for token in text[:length]]
        row[:len(mine)] = mine
    return x
