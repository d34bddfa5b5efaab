"""Assignment: which client holds which samples, and which of them it trains on, validates on and is tested on."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmpi.config import schema
from fedmpi.data.samples import Dataset
from fedmpi.errors import BadInput


class Dealt(NamedTuple):
    order: np.ndarray               # (n,): the samples client by client; of each train, validation, test
    counts: np.ndarray              # (N, 3): samples of each part
    groups: np.ndarray | None       # (N,): the planted group of each client
    group_names: list | None


def assign(pool: Dataset, data: schema.Data, seed: int) -> Dealt:
    """Decide who holds what, and which part of it to train on. Raises BadInput."""
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


def sample_holders(pool: Dataset):
    """Return who holds each sample (n,), as the data set says. Raises BadInput if it does not."""
    if pool.client_train is None:
        raise BadInput("data.partition = natural: the data set does not say who holds its samples; add client_train "
                       "and client_test to its .npz, or choose another partition")
    return np.concatenate([pool.client_train, pool.client_test])


def as_split(parts: list, train: int):
    """Sort every client's samples into the first `train` of the pool and the rest. Returns them and counts (N, 3)."""
    trained = [part < train for part in parts]
    counts = np.array([(mine.sum(), 0, (~mine).sum()) for mine in trained])
    if not counts[:, 0].all():
        raise BadInput(f"data.partition: client {np.argmin(counts[:, 0])} has no training samples; every client needs "
                       "one in client_train")
    return [np.concatenate([part[mine], part[~mine]]) for part, mine in zip(parts, trained, strict=True)], counts


def legal(parts, clients: int, samples: int) -> bool:
    if len(parts) != clients or not all(map(len, parts)):
        return False
    held = np.sort(np.concatenate(parts))
    return held.dtype.kind in "iu" and held[0] >= 0 and held[-1] < samples and np.diff(held).all()


def split_samples(samples: int, shares) -> tuple[int, int, int]:
    """Cut a client's samples into train (at least 1), validation and test."""
    # 1e-9: .6 * 5 must not become 2 for being stored as 2.9999...
    edges = np.floor(np.cumsum(shares)[:-1] * samples + 1e-9).astype(int)
    train = max(1, int(edges[0]))
    test = samples - max(train, int(edges[-1]))
    return train, samples - train - test, test
