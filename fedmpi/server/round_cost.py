"""What a round costs a client: the ledger of what it would send and receive (logical), in exact bytes, and the time and
energy of a device at the edge."""
from __future__ import annotations

import numpy as np

MIB = 2 ** 20


def printed(total: int, model: int, head: int) -> float:
    """Return bytes of a round in MB as FedMHC's table II prints them: the sizes of a model and of a head are rounded to
    two decimals first, a MB is 2^20 bytes. Labels and the like, less than 1 % of a head, do not show. Raises ValueError
    where other things travel."""
    models, rest = divmod(total, model)
    heads, rest = divmod(rest, head)
    if rest > head / 100:
        raise ValueError(f"{rest} of {total} bytes are neither models of {model} nor heads of {head}")
    return round(models * round(model / MIB, 2) + heads * round(head / MIB, 2), 2)


def batches_per_pass(sizes: np.ndarray, train) -> np.ndarray:
    """Return the batches of one pass of each client's local training, (n,)."""
    return np.full(len(sizes), train.steps) if train.steps else train.epochs * -(-np.asarray(sizes) // train.batch)
