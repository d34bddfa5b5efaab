"""By which labels samples are divided among clients and counted: their classes, or bins of the targets."""
from __future__ import annotations

import numpy as np

from fedmpi.data.samples import Dataset
from fedmpi.errors import BadInput

# Targets are divided into so many bins, which serve as classes where samples are divided among clients and counted.
TARGET_BINS = 10


def find_bin_edges(pool: Dataset) -> np.ndarray:
    """Return the edges (TARGET_BINS - 1,) that divide the targets of a pool into bins of equally many samples."""
    y = np.concatenate([pool.y_train, pool.y_test])
    return np.quantile(y, np.arange(1, TARGET_BINS) / TARGET_BINS)


def list_labels(pool: Dataset, y: np.ndarray) -> np.ndarray:
    """Return the classes (n,) by which samples are divided and counted: y itself, or the bins of targets y."""
    return y if y.dtype.kind == "i" else np.searchsorted(find_bin_edges(pool), y, side="right").astype(np.int64)


def count_labels(y: np.ndarray, counts: np.ndarray, classes: int) -> np.ndarray:
    """Count the samples per client, part and class, (N, 3, C), from the labels y (n,) and counts (N, 3)."""
    part = np.repeat(np.arange(counts.size), counts.ravel())
    return np.bincount(part * classes + y, minlength=counts.size * classes).reshape(*counts.shape, classes)


def count_outputs(pool: Dataset, where: str) -> int:
    """Return the outputs that a network needs: 1 for targets, else one for each class, also for one that the data set
    names and no sample has. Raises BadInput, whose message holds `where`, for a single class."""
    if pool.y_train.dtype.kind == "f":
        return 1
    largest = int(max(pool.y_train.max(), pool.y_test.max(initial=0)))
    if (classes := max(largest + 1, len((pool.about or {}).get("class_names") or ()))) == 1:
        raise BadInput(f"{where}: all samples are of class 0, so there is nothing to learn; set data.task = regression "
                       "if y holds numbers to be predicted")
    return classes
