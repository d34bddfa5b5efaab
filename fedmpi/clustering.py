"""Clustering of clients at rank 0: scikit-learn's algorithms, seeded, warm-started, with empty clusters handled."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

MOST = 300      # iterations of Lloyd


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


def kmeans(rows: Tensor, k: int, start: Tensor | None, seed: tuple[int, ...], weight=None, tries: int = 1) -> Clusters:
    """Cluster rows (n, d) into at most k groups by Lloyd's k-means, from `start` (k, d) or k-means++ (seeded), the
    best of `tries` starts; `weight` (n,) where rows do not count alike.

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
        found = KMeans(groups, init=init, n_init=1 if start is not None else tries, random_state=state).fit(
            rows, sample_weight=weight)
    return Clusters(relabel[found.labels_], int(found.n_iter_), k)


def settle(rows: Tensor, start: Tensor, weight=None) -> Clusters:
    """Cluster rows (n, d) by Lloyd's iteration from `start` (k, d) until no row changes its cluster.

    A cluster without rows keeps its centre, where `kmeans` would move it to a far row: that is right for clusters whose
    members may just not take part in a round."""
    rows, centres = rows.double().numpy(), start.double().numpy().copy()
    weight, labels = np.ones(len(rows)) if weight is None else np.asarray(weight, float), None
    for iteration in range(1, MOST + 1):  # noqa: B007
        before, labels = labels, nearest(rows, centres)
        if np.array_equal(before, labels):
            break
        for j in np.unique(labels):
            centres[j] = np.average(rows[labels == j], 0, weight[labels == j])
    return Clusters(labels, iteration, len(centres))


def embed(gram: Tensor) -> Tensor:
    """Return points (n, r) that are as far from each other as the rows whose inner products `gram` (n, n) holds.

    Exact: long rows can be clustered by these short ones. The points' mean is 0 and r <= n - 1."""
    from threadpoolctl import threadpool_limits
    gram = gram.double().numpy()
    inner = gram - gram.mean(0) - gram.mean(1, keepdims=True) + gram.mean()
    with threadpool_limits(1):
        values, vectors = np.linalg.eigh(inner)
    kept = values > len(gram) * np.finfo(float).eps * gram.diagonal().max()      # the rest is rounding
    return torch.from_numpy(vectors[:, kept] * np.sqrt(values[kept]))


def nearest(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the index of the nearest centre of each row, (n,)."""
    return np.stack([((rows - centre) ** 2).sum(1) for centre in centres], 1).argmin(1)      # one (n, d) at a time


def placed(table: Tensor, ids: np.ndarray, values: np.ndarray) -> Tensor:
    """Return a copy of a table by client in which the entries of `ids` are `values`."""
    table = table.clone()
    table[torch.from_numpy(ids)] = torch.from_numpy(np.asarray(values, np.int64))
    return table
