"""Bring features of tables to single precision and to one scale. Legend of shapes: n rows, d features."""
from __future__ import annotations

import numpy as np

from fedmpi.data.samples import Dataset, take_rows
from fedmpi.errors import BadInput

# From here on whole numbers are too many for single precision.
LARGEST_EXACT = 2 ** 24
# A column loses what it says if so small a share of its different values is left in single precision.
DIFFERENT_LEFT = .75
# A mean of so many standard deviations takes 10 of the 24 bits of single precision away from the differences.
LARGE_MEAN = 1000


def refuse_merged(x: np.ndarray, names: list[str], where: str) -> None:
    """Raise BadInput if single precision makes the same of many values of a feature, as of days that are written
    20240131, or of seconds since 1970.

    Args:
        x: (n, d) float64
        names: (d,)
        where: the beginning of the message"""
    for k in np.flatnonzero(np.abs(x).max(0, initial=0) > LARGEST_EXACT):
        with np.errstate(over="ignore"):
            before, after = (len(np.unique(column)) for column in (x[:, k], x[:, k].astype(np.float32)))
        if after < DIFFERENT_LEFT * before:
            raise BadInput(f"{where}: the column {names[k]!r} has numbers such as {x[0, k]:.15g}, of which features in "
                           f"single precision keep {after} of {before} different ones; set data.standardise: true, or "
                           "store their distance from a number")


def remove_large_means(train: np.ndarray, test: np.ndarray) -> list[np.ndarray]:
    """Return features of both parts, (n, d) float64, in single precision, to be standardised. Where the mean is far
    larger than the deviation the first value is subtracted before, which standardising takes out anyway."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = train.mean(0), train.std(0)
        offset = np.where((deviation > 0) & (np.abs(mean) > LARGE_MEAN * deviation), train[0], 0)
        return [(x - offset).astype(np.float32) for x in (train, test)]


def standardise_features(pool: Dataset, trained: np.ndarray) -> Dataset:
    """Bring every feature of a pool to mean 0 and standard deviation 1 over the samples `trained` (m,), which count
    through the training part and then the test part."""
    # Where the data say which samples are for training, no copy may change the order of the sums.
    given = np.array_equal(trained, np.arange(len(pool.x_train)))
    rows = pool.x_train if given else take_rows(pool.x_train, pool.x_test, trained)
    mean, deviation = rows.mean(0, dtype=np.float64), rows.std(0, dtype=np.float64)
    deviation[deviation == 0] = 1
    with np.errstate(over="ignore"):
        train, test = (((x - mean) / deviation).astype(np.float32) for x in (pool.x_train, pool.x_test))
    return pool._replace(x_train=train, x_test=test)
