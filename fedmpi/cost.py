"""The ledger of bytes: what the federation's clients would send and receive (logical), in exact bytes."""
from __future__ import annotations

import numpy as np

MIB = 2 ** 20


def nbytes(state) -> int:
    """Return the bytes of a NamedTuple of tensors."""
    return sum(v.numel() * v.element_size() for v in state)


def steps(sizes: np.ndarray, train) -> np.ndarray:
    """Return the batches of one pass of each client's local training, (n,)."""
    return np.full(len(sizes), train.steps) if train.steps else train.epochs * -(-np.asarray(sizes) // train.batch)
