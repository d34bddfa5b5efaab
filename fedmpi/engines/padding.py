"""Samples of many clients as one tensor, padded to whole blocks."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fedmpi.engines import batch_plan

# Samples of each client per forward pass without gradients. Blocks are always whole. If a matrix product had as many
# rows as the largest client has samples, a client's bits would depend on the other clients of its cohort.
SAMPLES_PER_BLOCK = 64


def pad_samples(rows: Sequence[Tensor]) -> Tensor:
    """Stack tensors of different lengths (n, ...). Each is filled up to whole blocks, as many as the first, longest one
    has, by copies of its own first sample: a network's output for a blank sample may be NaN, which no weight of 0
    undoes. A tensor without samples is filled with zeros."""
    if rows[0].is_cuda:
        starts = np.cumsum([0, *map(len, rows)])
        return gather_padded(torch.cat(rows), [np.arange(*pair) for pair in pairwise(starts)])
    out = rows[0].new_empty((len(rows), round_up_to_blocks(len(rows[0])), *rows[0].shape[1:]))
    for padded, row in zip(out, rows, strict=True):
        padded[:len(row)] = row
        if len(row) < len(padded):
            padded[len(row):] = row[0] if len(row) else 0
    return out


def gather_padded(flat: Tensor, places: list[np.ndarray]) -> Tensor:
    """Return the samples at these places among all (n, ...), one row per client, padded as `pad_samples` does; but one
    without samples has copies of the very first sample.

    A GPU takes a single operation for it, not one per client."""
    table = np.zeros((len(places), round_up_to_blocks(len(places[0]))), np.int64)
    for row, mine in zip(table, places, strict=True):
        row[:len(mine)], row[len(mine):] = mine, mine[0] if len(mine) else 0
    return flat[batch_plan.copy_to_device(table, flat.device)]


def round_up_to_blocks(n: int) -> int:
    """Return the smallest number of samples that fills whole blocks and is at least n."""
    return -(-n // SAMPLES_PER_BLOCK) * SAMPLES_PER_BLOCK
