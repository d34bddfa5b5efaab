"""Clustering of clients at rank 0: scikit-learn's algorithms, seeded, warm-started, with empty clusters handled.

Legend: n rows, d their length, k clusters."""
from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedmpi.clustering.low_rank import decompose_symmetric

# Iterations of Lloyd's algorithm.
MAX_ITERATIONS = 300
# Tables of more numbers (1 GiB in double precision) are clustered in single precision by scikit-learn.
LARGE_TABLE = 1 << 27


class RowsLike(Protocol):
    """What is asked of a handle on rows that lie at several ranks: see comm/rows.py."""
    def gather(self) -> Tensor:
        """Return every row, (n, d)."""
    def gram(self, origin: Tensor | None = None, *, blocks: Sequence[slice]) -> Tensor:
        """Return all inner products of these blocks of the rows, (n, n) float64; `origin` (d,) is subtracted first."""


class Clusters(NamedTuple):
    """The clusters of n rows."""
    # cluster of each row, (n,)
    labels: np.ndarray
    # iterations that k-means took
    iterations: int
    k: int
    # mean distance of rows from their cluster's mean, known only of `cluster_models`
    distance: float = float("nan")

    def centres(self, rows: Tensor, old: Tensor) -> Tensor:
        """Return the mean of each cluster's rows (k, d); an empty cluster keeps its `old` row."""
        new = old.clone()
        for j in range(self.k):
            members = rows[torch.from_numpy(self.labels == j)]
            if len(members):
                new[j] = members.double().mean(0).to(rows.dtype)
        return new


def kmeans(rows: Tensor, k: int, start: Tensor | None, seed: tuple[int, ...], weight: np.ndarray | None = None,
           tries: int = 1, batch: int = 0, keep_empty: bool = False) -> Clusters:
    """Cluster rows into at most k groups by Lloyd's k-means.

    If there are fewer rows than clusters, each row is a cluster of its own (equal ones may share theirs), and labels
    are 0 to n - 1 in some order; with a start each row belongs to the nearest centre.

    scikit-learn moves a centre that lost all its rows to a far row. That is wrong where the members of a cluster may
    just not take part in a round: `keep_empty` leaves such a centre where it is.

    Args:
        rows: (n, d).
        start: centres to start from, (k, d); None: k-means++.
        seed: numbers that seed k-means++ and mini-batches.
        weight: of each row, (n,); default: all rows count alike.
        tries: starts of k-means++, of which the best result counts.
        batch: rows of a mini-batch (Sculley, WWW 2010), for many long rows of which a pass over all takes too long;
            0: no mini-batches, which move no centre in any case.
        keep_empty: whether clusters without rows keep the centre that they start from."""
    if start is not None and keep_empty and not batch:
        return lloyd(rows, start, weight)
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits
    rows, groups = (rows.float() if rows.numel() > LARGE_TABLE else rows.double()).numpy(), min(k, len(rows))
    # the round before the first one is -1
    state = int(np.random.SeedSequence([part % 2**32 if part < 0 else part for part in seed]).generate_state(1)[0])
    if start is not None and groups < k:
        return Clusters(find_nearest(rows, start.double().numpy()), 0, k)
    init = "k-means++" if start is None else start.numpy().astype(rows.dtype)
    # The order of sums, and so the bits, must not depend on the number of threads.
    with threadpool_limits(1), warnings.catch_warnings():
        # fewer different rows than clusters are not the user's fault
        warnings.simplefilter("ignore", ConvergenceWarning)
        made = KMeans if not batch else partial(MiniBatchKMeans, batch_size=batch, reassignment_ratio=0.)
        found = made(groups, init=init, n_init=1 if start is not None else tries, random_state=state).fit(
            rows, sample_weight=weight)
    return Clusters(found.labels_.astype(np.int64), int(found.n_iter_), k)


def lloyd(rows: Tensor, start: Tensor, weight: np.ndarray | None = None) -> Clusters:
    """Cluster rows by Lloyd's iteration until no row changes its cluster.

    A cluster without rows keeps its centre.

    Args:
        rows: (n, d).
        start: centres to start from, (k, d).
        weight: of each row, (n,); default: all rows count alike."""
    rows, centres = rows.double().numpy(), start.double().numpy().copy()
    weight, labels = np.ones(len(rows)) if weight is None else np.asarray(weight, float), None
    for iteration in range(1, MAX_ITERATIONS + 1):  # noqa: B007
        before, labels = labels, find_nearest(rows, centres)
        if np.array_equal(before, labels):
            break
        for j in np.unique(labels):
            centres[j] = np.average(rows[labels == j], 0, weight[labels == j])
    return Clusters(labels, iteration, len(centres))


def embed_rows(gram: Tensor) -> Tensor:
    """Return points (n, r) that are as far from each other as the rows whose inner products `gram` (n, n) holds.

    That is classical multidimensional scaling. It is exact, so long rows can be clustered by these short ones. The
    points' mean is 0, and r <= n - 1 (1 if n is 1)."""
    gram = gram.double().numpy()
    inner = gram - gram.mean(0) - gram.mean(1, keepdims=True) + gram.mean()
    values, vectors = decompose_symmetric(inner)
    # The other columns hold rounding errors. If all rows are equal, a single column of zeros is left.
    kept = values > len(gram) * np.finfo(float).eps * gram.diagonal().max()
    kept[-1] = True
    return torch.from_numpy(vectors[:, kept] * np.sqrt(values[kept].clip(0)))


def find_nearest(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the index of the nearest centre of each row, (n,).

    Differences are squared and not multiplied out, so that rows much nearer to each other than to 0 keep their digits.
    """
    from scipy.spatial.distance import cdist
    return cdist(rows, centres, "sqeuclidean").argmin(1)


def compute_mean_distance(rows: Tensor, labels: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Return the mean distance of rows (n, d) from their cluster's (weighted) mean, as FedMHC measures clusters."""
    weight, total = np.ones(len(rows)) if weight is None else np.asarray(weight, float), 0.
    for j in np.unique(labels):
        members = rows[torch.from_numpy(labels == j)].double().numpy()
        total += np.linalg.norm(members - np.average(members, 0, weight[labels == j]), axis=1).sum()
    return float(total / len(rows))


def replace_entries(table: Tensor, ids: np.ndarray, values: np.ndarray) -> Tensor:
    """Return a copy of a table by client, (N,), in which the entries of clients `ids` are `values`."""
    table = table.clone()
    table[torch.from_numpy(ids)] = torch.from_numpy(np.asarray(values, np.int64))
    return table


def cluster_models(rows: RowsLike, squares: RowsLike, centres: Tensor, seed: tuple[int, ...], *,
                   keep_empty: bool, blocks: Sequence[slice] = (slice(None),),
                   unused: Tensor | None = None, founders: Tensor | None = None) -> Clusters:
    """Cluster long rows as `kmeans` would, though they lie at several ranks, and measure `distance`.

    Args:
        rows: a Rows handle on the rows, (n, d).
        squares: a Rows handle on their squared distances from the centres, (n, k).
        centres: where k-means starts, (k, d); if all are equal, it starts by k-means++.
        seed: numbers that seed k-means++.
        keep_empty: whether clusters without rows keep their centre; see `kmeans`.
        blocks: the slices of a row that count, also in `squares`; `model.trainable` leaves running statistics out.
        unused: which centres never had a row, (k,) bool, see `seed_unused`; only if `keep_empty`.
        founders: which rows may become such centres, (n,) bool: those of clients without a cluster."""
    origin, k, to_centres = centres.mean(0), len(centres), squares.gather().double()
    gram = rows.gram(origin, blocks=blocks)
    counted, middle = (torch.cat([values[..., block] for block in blocks], -1) for values in (centres, origin))
    if choose_start_centres(counted) is None:
        points = embed_rows(gram)
        return measure_clusters(kmeans(points, k, None, seed), points)
    if len(to_centres) < k and not keep_empty:
        return measure_clusters(Clusters(to_centres.argmin(1).numpy(), 0, k), embed_rows(gram))
    points, known = embed_beside(gram, to_centres, counted - middle)
    start = known[find_first_equal(to_centres.T)]
    if keep_empty and unused is not None:
        start = seed_unused(points[founders], start, unused)
    return measure_clusters(kmeans(points, k, start, seed, keep_empty=keep_empty), points)


def embed_beside(gram: Tensor, squares: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return points (n, m) and (k, m) that lie to each other as long rows and the centres do: see `embed_rows`.

    Args:
        gram: the inner products of the rows, (n, n).
        squares: their squared distances from the centres, (n, k).
        centres: from the same origin as the rows, (k, d)."""
    centres = centres.double()
    products = centres @ centres.T
    across = (gram.diagonal()[:, None] + products.diagonal() - squares) / 2
    points = embed_rows(torch.cat([torch.cat([gram, across], 1), torch.cat([across.T, products], 1)]))
    return points[:len(gram)], points[len(gram):]


def choose_start_centres(centres: Tensor) -> Tensor | None:
    """Return the centres (k, d) from which k-means starts: None, for k-means++, if all are equal, as at first."""
    return None if (centres == centres[0]).all() else centres


def find_first_equal(rows: Tensor) -> Tensor:
    """Return for each row (k, d) the number of the first row that equals it, (k,)."""
    number = torch.unique(rows, dim=0, return_inverse=True)[1]
    return (number[:, None] == number).int().argmax(1)


def seed_unused(rows: Tensor, centres: Tensor, unused: Tensor) -> Tensor:
    """Return centres (k, d) of which each that never had a row becomes the row farthest from all centres that had one,
    or that have become one before it. Else it would stay where all began, and might draw most later rows.

    Args:
        rows: (n, d), those of clients that are in no cluster yet.
        centres: (k, d), those without a row all alike.
        unused: which ones never had a row, (k,) bool; none if all of them."""
    from scipy.spatial.distance import cdist
    if unused.all() or not unused.any() or not len(rows):
        return centres
    centres, known = centres.clone(), ~unused
    for j in torch.nonzero(unused).flatten():
        apart = torch.from_numpy(cdist(rows.double().numpy(), centres[known].double().numpy()).min(1))
        if not apart.max() > 0:
            break
        centres[j], known[j] = rows[apart.argmax()], True
    return centres


def measure_clusters(found: Clusters, points: Tensor) -> Clusters:
    """Return the clusters with their mean distance, given points that are as far apart as the rows, (n, r)."""
    return found._replace(distance=compute_mean_distance(points, found.labels))


def split_in_two(cosines: Tensor) -> np.ndarray:
    """Split rows in two by complete linkage; return which rows are in the smaller part, (n,) bool.

    Args:
        cosines: of the rows with each other, (n, n)."""
    from sklearn.cluster import AgglomerativeClustering
    linkage = AgglomerativeClustering(2, metric="precomputed", linkage="complete")
    labels = linkage.fit_predict(1 - cosines.double().numpy())
    # of two equal parts, the one without the first row
    leaving = labels != labels[0]
    return leaving if 2 * leaving.sum() <= len(leaving) else ~leaving
