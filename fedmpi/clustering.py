"""Clustering of clients at rank 0: scikit-learn's algorithms, seeded, warm-started, with empty clusters handled."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Clusters(NamedTuple):
    labels: np.ndarray      # (n,) cluster of each row
    iterations: int         # that k-means took
    k: int

    def centres(self, rows: Tensor, old: Tensor) -> Tensor:
        """Return the mean of each cluster's rows (k, d); an empty cluster keeps its `old` row."""
        new = old.clone()
        for j in range(self.k):
            members = rows[torch.from_numpy(self.labels == j)]
            if len(members):
                new[j] = members.double().mean(0).to(rows.dtype)
        return new


def kmeans(rows: Tensor, k: int, start: Tensor | None, seed: tuple[int, ...]) -> Clusters:
    """Cluster rows (n, d) into at most k groups by Lloyd's k-means, from `start` (k, d) or k-means++ (seeded).

    With fewer rows than clusters each row is its own cluster; labels then are 0..n-1."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits
    rows, groups = rows.double().numpy(), min(k, len(rows))
    state = int(np.random.SeedSequence(seed).generate_state(1)[0])
    if start is not None and groups == k:
        init, relabel = start.double().numpy(), np.arange(k)
    elif start is not None:
        return Clusters(nearest(rows, start.double().numpy()), 0, k)
    else:
        init, relabel = "k-means++", np.arange(groups)
    with threadpool_limits(1):      # the order of sums, and so the bits, must not depend on threads
        found = KMeans(groups, init=init, n_init=1, random_state=state).fit(rows)
    return Clusters(relabel[found.labels_], int(found.n_iter_), k)


def nearest(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the index of the nearest centre of each row, (n,)."""
    return ((rows[:, None] - centres[None]) ** 2).sum(-1).argmin(1)


def placed(table: Tensor, ids: np.ndarray, values: np.ndarray) -> Tensor:
    """Return a copy of a table by client in which the entries of `ids` are `values`."""
    table = table.clone()
    table[torch.from_numpy(ids)] = torch.from_numpy(np.asarray(values, np.int64))
    return table
