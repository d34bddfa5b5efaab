"""Keep a share of the samples of a pool, see `data.fraction`.

Legend of shapes: n samples of both parts, m of them."""
from __future__ import annotations

import numpy as np

from fedmpi.config import schema
from fedmpi.data.allocation import list_samples_by_class
from fedmpi.data.given_partitions import Natural
from fedmpi.data.labels import list_labels
from fedmpi.data.samples import Dataset


def thin_samples(pool: Dataset, share: float, seed: int, holders: np.ndarray | None = None) -> Dataset:
    """Keep this share of the samples of every class (of all bins of targets), at least one of each, in their order.

    The seed decides which samples are kept; the train and the test part are thinned separately. `holders` (m,) are the
    clients of the first m samples, those of the training part first; each of them keeps at least one of these."""
    if share == 1:
        return pool
    drawn, start = [], len(pool.y_train)
    for which, name in enumerate(("train", "test")):
        y, generator = list_labels(pool, getattr(pool, f"y_{name}")), np.random.default_rng((2, which, seed))
        of_class = list_samples_by_class(y) if len(y) else []
        drawn += [which * start + generator.choice(places, max(1, round(share * len(places))), replace=False)
                  for places in of_class]
    kept = np.sort(np.concatenate(drawn))
    if holders is not None:
        clients, first = np.unique(holders, return_index=True)
        kept = np.union1d(kept, first[~np.isin(clients, holders[kept[kept < len(holders)]])])
    rows = {"train": kept[kept < start], "test": kept[kept >= start] - start}
    return pool._replace(**{k: getattr(pool, k)[rows[name]] for name in rows
                            for k in (f"x_{name}", f"y_{name}", f"client_{name}") if getattr(pool, k) is not None})


def find_needed_holders(pool: Dataset, data: schema.Data) -> np.ndarray | None:
    """Return the clients (m,) of the samples of which each client needs one, in the order of the samples: of the
    training part, or of both parts if data.split divides these. None if the data do not say who holds what, or if that
    does not count."""
    if not isinstance(data.partition, Natural) or pool.client_train is None:
        return None
    return pool.client_train if data.comes_split else np.concatenate([pool.client_train, pool.client_test])
