"""Slices of a flat vector (d,): the blocks of a network, and its running statistics (r,)."""
from __future__ import annotations

import torch
from torch import Tensor


def join_slices(slices: list[slice]) -> list[slice]:
    """Join slices that follow one another without a gap."""
    out = slices[:1]
    for part in slices[1:]:
        if out[-1].stop == part.start:
            out[-1] = slice(out[-1].start, part.stop)
        else:
            out.append(part)
    return out


def is_inside(part: slice, block: slice) -> bool:
    """Say whether a slice lies within a block."""
    return block.start <= part.start and part.stop <= block.stop


def gather_statistics(w: Tensor, buffers: list[slice]) -> Tensor:
    """Return the statistics (r,) in a vector (d,), one after another; `buffers` are their slices."""
    return torch.cat([w[part] for part in buffers])
