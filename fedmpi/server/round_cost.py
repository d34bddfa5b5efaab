"""What a round costs a client: the bytes that it would send and receive, and its batches."""
from __future__ import annotations

import numpy as np

from fedmpi.config.schema import Train
from fedmpi.engines.batch_plan import count_batches
from fedmpi.text import MIB


def count_printed_bytes(total: int, model: int, head: int) -> float:
    """Return the bytes of a round in MB as FedMHC's table II prints them.

    There the sizes of a model and of a head are rounded to two decimals first, and a MB is 2^20 bytes. Labels and the
    like, less than 1 % of a head, do not show.

    Args:
        total: the bytes of the round.
        model: those of a model.
        head: those of a head.

    Raises:
        ValueError: if other things than models and heads travel."""
    models, rest = divmod(total, model)
    heads, rest = divmod(rest, head)
    if rest > head / 100:
        raise ValueError(f"{rest} of {total} bytes are neither models of {model} nor heads of {head}")
    return round(models * round(model / MIB, 2) + heads * round(head / MIB, 2), 2)


def count_batches_of_round(sizes: np.ndarray, train: Train) -> np.ndarray:
    """Return the batches of each client's local training in a round, (n,).

    Args:
        sizes: training samples of each client, (n,).
        train: the settings of local training."""
    if train.steps:
        return np.full(len(sizes), train.steps)
    return train.epochs * count_batches(np.asarray(sizes), train.batch, train.drop_last)
