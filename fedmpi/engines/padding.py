"""Samples of many clients as one tensor, padded to whole blocks."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fedmpi.comm.gpu_staging import copy_to_device

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
    return flat[copy_to_device(table, flat.device)]


def gather_own(sizes: Sequence[int], padded: Tensor) -> Tensor:
    """Return the samples of all clients (n, ...) without their padding; the inverse of `pad_samples`.

    Args:
        sizes: the clients' numbers of samples.
        padded: (c, s, ...)."""
    places = np.concatenate([i * padded.shape[1] + np.arange(n) for i, n in enumerate(sizes)])
    return padded.flatten(0, 1)[copy_to_device(places, padded.device)]


def mark_own(sizes: Sequence[int], padded: Tensor) -> tuple[Tensor, Tensor]:
    """Return which samples of padded ones (c, s, ...) are the clients' own, (c, s) bool, and `sizes` on their device.

    Args:
        sizes: the clients' numbers of samples (c,)."""
    there = copy_to_device(np.array(sizes), padded.device)
    return torch.arange(padded.shape[1], device=padded.device) < there[:, None], there


def split_blocks(sizes: Sequence[int], *padded: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the blocks of padded tensors (c, s, ...), each without the clients that have only padding there.

    Args:
        sizes: the clients' numbers of samples, descending, so that a block has the first k clients. The first block has
            all, whatever they hold.
        padded: any tensors that `pad_samples` fills, samples and labels say; each block has a part of every one."""
    for i, blocks in enumerate(zip(*(t.split(SAMPLES_PER_BLOCK, 1) for t in padded), strict=True)):
        first = i * SAMPLES_PER_BLOCK
        k = sum(n > first for n in sizes) if first else len(sizes)
        yield tuple(block[:k] for block in blocks)


def join_blocks(blocks: Sequence[Tensor]) -> Tensor:
    """Return what was computed of the blocks of `split_blocks`, each (k, block, ...), as one tensor (c, s, ...).

    Where a block leaves a client out, the client's values of the first block are repeated: they are as finite as those
    of its samples, so a weight of 0 removes them."""
    return torch.cat([torch.cat([block, blocks[0][len(block):]]) if len(block) < len(blocks[0]) else block
                      for block in blocks], 1)


def round_up_to_blocks(n: int) -> int:
    """Return the smallest number of samples that fills whole blocks and is at least n."""
    return -(-n // SAMPLES_PER_BLOCK) * SAMPLES_PER_BLOCK
