"""Clustering of clients at rank 0: scikit-learn's algorithms, seeded, warm-started, with empty clusters handled."""
from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmpi.clustering.low_rank import spectrum

MAX_ITERATIONS = 300      # iterations of Lloyd
LARGE_TABLE = 1 << 27      # numbers: more than these (1 GiB in double precision) are clustered in single precision


class Clusters(NamedTuple):
    labels: np.ndarray      # (n,) cluster of each row
    iterations: int         # that k-means took
    k: int
    distance: float = float("nan")      # of rows that only `kmeans_of_models` sees

    def centres(self, rows: Tensor, old: Tensor) -> Tensor:
        """Return the mean of each cluster's rows (k, d); an empty cluster keeps its `old` row."""
        new = old.clone()
        for j in range(self.k):
            members = rows[torch.from_numpy(self.labels == j)]
            if len(members):
                new[j] = members.double().mean(0).to(rows.dtype)
        return new


def kmeans(rows: Tensor, k: int, start: Tensor | None, seed: tuple[int, ...], weight=None, tries: int = 1,
           batch: int = 0) -> Clusters:
    """Cluster rows (n, d) into at most k groups by Lloyd's k-means, from `start` (k, d) or k-means++ (seeded), the
    best of `tries` starts; `weight` (n,) where rows do not count alike. With `batch`, by mini-batches of so many rows
    (Sculley, WWW 2010): for many long rows, where a pass over all of them takes too long.

    With fewer rows than clusters each row is its own cluster; labels then are 0..n-1."""
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from threadpoolctl import threadpool_limits
    rows, groups = (rows.float() if rows.numel() > LARGE_TABLE else rows.double()).numpy(), min(k, len(rows))
    state = int(np.random.SeedSequence(seed).generate_state(1)[0])
    if start is not None and groups == k:
        init, relabel = start.numpy().astype(rows.dtype), np.arange(k)
    elif start is not None:
        return Clusters(nearest(rows, start.double().numpy()), 0, k)
    else:
        init, relabel = "k-means++", np.arange(groups)
    with threadpool_limits(1):      # the order of sums, and so the bits, must not depend on threads
        made = KMeans if not batch else partial(MiniBatchKMeans, batch_size=batch, reassignment_ratio=0.)
        found = made(groups, init=init, n_init=1 if start is not None else tries, random_state=state).fit(
            rows, sample_weight=weight)
    return Clusters(relabel[found.labels_], int(found.n_iter_), k)


def lloyd(rows: Tensor, start: Tensor, weight=None) -> Clusters:
    """Cluster rows (n, d) by Lloyd's iteration from `start` (k, d) until no row changes its cluster.

    A cluster without rows keeps its centre, where `kmeans` would move it to a far row: that is right for clusters whose
    members may just not take part in a round."""
    rows, centres = rows.double().numpy(), start.double().numpy().copy()
    weight, labels = np.ones(len(rows)) if weight is None else np.asarray(weight, float), None
    for iteration in range(1, MAX_ITERATIONS + 1):  # noqa: B007
        before, labels = labels, nearest(rows, centres)
        if np.array_equal(before, labels):
            break
        for j in np.unique(labels):
            centres[j] = np.average(rows[labels == j], 0, weight[labels == j])
    return Clusters(labels, iteration, len(centres))


def embed(gram: Tensor) -> Tensor:
    """Return points (n, r) that are as far from each other as the rows whose inner products `gram` (n, n) holds.

    Exact: long rows can be clustered by these short ones. The points' mean is 0 and r <= n - 1 (1 where n is 1)."""
    gram = gram.double().numpy()
    inner = gram - gram.mean(0) - gram.mean(1, keepdims=True) + gram.mean()
    values, vectors = spectrum(inner)
    kept = values > len(gram) * np.finfo(float).eps * gram.diagonal().max()      # the rest is rounding
    kept[-1] = True      # of rows that are all equal, a single column of zeros is left
    return torch.from_numpy(vectors[:, kept] * np.sqrt(values[kept].clip(0)))


def nearest(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the index of the nearest centre of each row, (n,). The differences are squared, not multiplied out: rows
    much nearer to each other than to 0 keep their digits."""
    from scipy.spatial.distance import cdist
    return cdist(rows, centres, "sqeuclidean").argmin(1)


def mean_distance(rows: Tensor, labels: np.ndarray, weight=None) -> float:
    """Return the mean distance of rows (n, d) from their cluster's (weighted) mean, as FedMHC measures clusters."""
    weight, total = np.ones(len(rows)) if weight is None else np.asarray(weight, float), 0.
    for j in np.unique(labels):
        members = rows[torch.from_numpy(labels == j)].double().numpy()
        total += np.linalg.norm(members - np.average(members, 0, weight[labels == j]), axis=1).sum()
    return float(total / len(rows))


def placed(table: Tensor, ids: np.ndarray, values: np.ndarray) -> Tensor:
    """Return a copy of a table by client in which the entries of `ids` are `values`."""
    table = table.clone()
    table[torch.from_numpy(ids)] = torch.from_numpy(np.asarray(values, np.int64))
    return table


def kmeans_of_models(rows, squares, centres: Tensor, seed: tuple[int, ...]) -> Clusters:
    """Cluster long rows (a Rows handle, n) as `kmeans` would, without their being at one place, and measure `distance`.

    centres (k, d): where it starts (all equal: k-means++); squares (a Rows handle, (n, k)): squared distances to it."""
    origin, k, squares = centres.mean(0), len(centres), squares.gather().double()
    gram = rows.gram(origin)
    if (centres == centres[0]).all():
        return measure_clusters(kmeans(points := embed(gram), k, None, seed), points)
    if len(squares) < k:
        return measure_clusters(Clusters(squares.argmin(1).numpy(), 0, k), embed(gram))
    centres = (centres - origin).double()
    products = centres @ centres.T
    across = (gram.diagonal()[:, None] + products.diagonal() - squares) / 2
    points = embed(torch.cat([torch.cat([gram, across], 1), torch.cat([across.T, products], 1)]))
    twins = (squares[:, :, None] == squares[:, None]).all(0).int().argmax(1)      # the first of equal centres
    return measure_clusters(kmeans(points[:-k], k, points[-k:][twins], seed), points[:-k])


def measure_clusters(found: Clusters, points: Tensor) -> Clusters:
    return found._replace(distance=mean_distance(points, found.labels))


def split_in_two(cosines: Tensor) -> np.ndarray:
    """Split rows in two by complete linkage on their cosines (n, n); return which leave: the smaller part (n,) bool."""
    from sklearn.cluster import AgglomerativeClustering
    linkage = AgglomerativeClustering(2, metric="precomputed", linkage="complete")
    labels = linkage.fit_predict(1 - cosines.double().numpy())
    leaving = labels != labels[0]      # of two equal parts, the one without the first row
    return leaving if 2 * leaving.sum() <= len(leaving) else ~leaving
