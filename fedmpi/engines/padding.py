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
    """Stack tensors of different lengths. Zeros fill each up to whole blocks, as many as the first, longest one has."""
    if rows[0].is_cuda:
        starts = np.cumsum([0, *map(len, rows)])
        return gather_padded(torch.cat(rows), [np.arange(*pair) for pair in pairwise(starts)])
    out = rows[0].new_zeros((len(rows), round_up_to_blocks(len(rows[0])), *rows[0].shape[1:]))
    for i, row in enumerate(rows):
        out[i, :len(row)] = row
    return out


def gather_padded(flat: Tensor, places: list[np.ndarray]) -> Tensor:
    """Return the samples at these places among all (n, ...), one row per client, padded as `pad_samples` does.

    A GPU takes a few operations for it, not one per client."""
    table = np.full((len(places), round_up_to_blocks(len(places[0]))), -1)
    for row, mine in zip(table, places, strict=True):
        row[:len(mine)] = mine
    at = batch_plan.copy_to_device(table, flat.device)
    out = flat[at.clamp_min(0)]
    return out.masked_fill_((at < 0).view(*at.shape, *[1] * (out.ndim - 2)), 0)


def round_up_to_blocks(n: int) -> int:
    """Return the smallest number of samples that fills whole blocks and is at least n."""
    return -(-n // SAMPLES_PER_BLOCK) * SAMPLES_PER_BLOCK
