"""scikit-learn's k-means on whole rows, for references."""
from __future__ import annotations

import numpy as np
import torch
from sklearn.cluster import KMeans


def lloyd(rows: torch.Tensor, centres: torch.Tensor, seed) -> np.ndarray:
    """Return the cluster of each row; it starts from the centres, or by k-means++ if they are all equal."""
    rows, centres, k = rows.double().numpy(), centres.double().numpy(), len(centres)
    state = int(np.random.SeedSequence(seed).generate_state(1)[0])
    if (centres == centres[0]).all():
        return KMeans(min(k, len(rows)), n_init=1, random_state=state).fit(rows).labels_
    if len(rows) < k:
        return ((rows[:, None] - centres) ** 2).sum(-1).argmin(1)
    return KMeans(k, init=centres, n_init=1, random_state=state).fit(rows).labels_
