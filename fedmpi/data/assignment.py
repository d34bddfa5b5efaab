"""Decide which client holds which samples, and which of them it trains on, validates on and is tested on.

Legend of shapes: n samples, N clients."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmpi.config import schema
from fedmpi.data.samples import Dataset
from fedmpi.errors import BadInput


class Dealt(NamedTuple):
    """Which samples of the pool each client holds, and in which part.

    order: the indices of the samples, (n,), client by client; inside a client train, validation and test follow each
    other. An index counts through x_train and then x_test. counts: how many samples each client has in each part,
    (N, 3). groups: the planted group of each client, (N,), or None. group_names: the names of the groups, or None."""
    order: np.ndarray
    counts: np.ndarray
    groups: np.ndarray | None
    group_names: list | None


def assign(pool: Dataset, data: schema.Data, seed: int) -> Dealt:
    """Divide the samples of the pool among the clients, and each client's samples into train, validation and test.

    Raises BadInput if the partition cannot divide this pool or gives an invalid division."""
    official = getattr(data.partition, "official", False)
    told = sample_holders(pool) if official else np.concatenate([pool.y_train, pool.y_test])
    parts, groups = data.partition.assign(told, data.clients, np.random.default_rng((0, seed)))
    if not legal(parts, data.clients, len(told)):
        raise BadInput(f"data.partition = {schema.name_of(data.partition)}: its assign() must give each of "
                       f"{data.clients} clients at least one sample, and no sample twice")
    shuffled = [np.random.default_rng((1, i, seed)).permutation(part) for i, part in enumerate(parts)]
    if official:
        shuffled, counts = as_split(shuffled, len(pool.y_train))
    else:
        counts = np.array([split_samples(len(part), data.split) for part in parts])
    groups = groups if groups is None else np.asarray(groups, np.int64)
    return Dealt(np.concatenate(shuffled), counts, groups, list(getattr(data.partition, "group_names", ())) or None)


def sample_holders(pool: Dataset) -> np.ndarray:
    """Return the client of each sample, (n,), that the data set itself gives. Raises BadInput if it gives none."""
    if pool.client_train is None:
        raise BadInput("data.partition = natural: the data set does not say who holds its samples; add client_train "
                       "and client_test to its .npz, or choose another partition")
    return np.concatenate([pool.client_train, pool.client_test])


def as_split(parts: list[np.ndarray], train: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Divide every client's samples as the data set does: the first `train` samples of the pool are for training.

    Returns each client's sample indices, those for training first, and the counts (N, 3) of train, validation (0) and
    test. Raises BadInput if a client has no training sample."""
    trained = [part < train for part in parts]
    counts = np.array([(mine.sum(), 0, (~mine).sum()) for mine in trained])
    if not counts[:, 0].all():
        raise BadInput(f"data.partition: client {np.argmin(counts[:, 0])} has no training samples; every client needs "
                       "one in client_train")
    return [np.concatenate([part[mine], part[~mine]]) for part, mine in zip(parts, trained, strict=True)], counts


def legal(parts: list[np.ndarray], clients: int, samples: int) -> bool:
    """Say whether each of the clients holds at least one sample, and all indices are valid and occur only once."""
    if len(parts) != clients or not all(map(len, parts)):
        return False
    held = np.sort(np.concatenate(parts))
    return held.dtype.kind in "iu" and held[0] >= 0 and held[-1] < samples and np.diff(held).all()


def split_samples(samples: int, shares: tuple[float, ...]) -> tuple[int, int, int]:
    """Return how many of a client's samples are for train (at least 1), validation and test; `shares` are two
    (without validation) or three."""
    # 1e-9 is added because .6 * 5 must not become 2 if it is stored as 2.9999...
    edges = np.floor(np.cumsum(shares)[:-1] * samples + 1e-9).astype(int)
    train = max(1, int(edges[0]))
    test = samples - max(train, int(edges[-1]))
    return train, samples - train - test, test
