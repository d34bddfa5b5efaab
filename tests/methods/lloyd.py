"""k-means on whole rows, for references: scikit-learn's, or written out where an empty cluster keeps its centre."""
from __future__ import annotations

import numpy as np
import torch
from sklearn.cluster import KMeans


def lloyd(rows: torch.Tensor, centres: torch.Tensor, seed, some_are_absent: bool) -> np.ndarray:
    """Return the cluster of each row; it starts from the centres, or by k-means++ if they are all equal."""
    rows, centres, k = rows.double().numpy(), centres.double().numpy().copy(), len(centres)
    state = int(np.random.SeedSequence(seed).generate_state(1)[0])
    if (centres == centres[0]).all():
        return KMeans(min(k, len(rows)), n_init=1, random_state=state).fit(rows).labels_
    if not some_are_absent:
        return KMeans(k, init=centres, n_init=1, random_state=state).fit(rows).labels_
    for _ in range(100):
        labels = ((rows[:, None] - centres) ** 2).sum(-1).argmin(1)
        for j in range(k):
            if j in labels:
                centres[j] = rows[labels == j].mean(0)
    return labels
