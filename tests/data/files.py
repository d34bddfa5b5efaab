"""Small files of data, valid and invalid, for tests of reading them."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedmpi.config.schema import resolve
from fedmpi.data import sources
from fedmpi.errors import BadInput


def save(folder, **arrays):
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    return path


def good(**changes):
    arrays = {"x_train": np.zeros((6, 3), np.float32), "y_train": np.arange(6)}
    return {**arrays, **changes}


def load(**data):
    """Return the pool of some `data` settings, of which clients take what is theirs."""
    found = resolve({"data": {"partition": "natural"} | data}).data
    return sources.load_source(found.name, Path("unused"), found.file, found.source, found.task)


def refusal(**data) -> str:
    """Return the one line that refuses some `data` settings, or the file that they name."""
    with pytest.raises(BadInput) as error:
        load(**data)
    assert "\n" not in str(error.value)
    return str(error.value)
