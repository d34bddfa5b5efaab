"""Small .npz files, valid and invalid, for tests of reading them."""
from __future__ import annotations

import numpy as np


def save(folder, **arrays):
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    return path


def good(**changes):
    arrays = {"x_train": np.zeros((6, 3), np.float32), "y_train": np.arange(6)}
    return {**arrays, **changes}
