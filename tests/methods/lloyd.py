"""k-means of whole rows, as references use it: scikit-learn's, on the rows themselves."""
from __future__ import annotations

import numpy as np
import torch
from sklearn.cluster import KMeans


def lloyd(rows: torch.Tensor, centres: torch.Tensor, seed) -> np.ndarray:
    """Return the cluster of each row: from the centres as they are, or k-means++ where all are equal."""
    rows, centres, k = rows.double().numpy(), centres.double().numpy(), len(centres)
    state = int(np.random.SeedSequence(seed).generate_state(1)[0])
    if (centres == centres[0]).all():
        return KMeans(min(k, len(rows)), n_init=1, random_state=state).fit(rows).labels_
    if len(rows) < k:
        return ((rows[:, None] - centres) ** 2).sum(-1).argmin(1)
    return KMeans(k, init=centres, n_init=1, random_state=state).fit(rows).labels_
