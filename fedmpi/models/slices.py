"""Slices of a flat vector (d,): the blocks of a network, and its running statistics (r,)."""
from __future__ import annotations

import torch
from torch import Tensor

# What to do about running statistics that are not wanted; a network of one's own has no setting for it.
AVOID_STATISTICS = "use GroupNorm in place of BatchNorm (model.norm = group with resnet18)"


def join_slices(slices: list[slice]) -> list[slice]:
    """Join slices, in ascending order of their starts, that touch or overlap."""
    out = slices[:1]
    for part in slices[1:]:
        if part.start <= out[-1].stop:
            out[-1] = slice(out[-1].start, max(out[-1].stop, part.stop))
        else:
            out.append(part)
    return out


def is_inside(part: slice, block: slice) -> bool:
    """Say whether a slice lies within a block."""
    return block.start <= part.start and part.stop <= block.stop


def remove_slices(slices: list[slice], holes: list[slice]) -> list[slice]:
    """Return what is left of slices without some holes, both in ascending order; each hole lies within a slice or in
    none."""
    out = []
    for part in slices:
        at = part.start
        for hole in holes:
            if is_inside(hole, part):
                out.append(slice(at, hole.start))
                at = hole.stop
        out.append(slice(at, part.stop))
    return [part for part in out if part.start < part.stop]


def zero_statistics(values: Tensor, buffers: list[slice]) -> Tensor:
    """Return values (..., d) with zeros in place of running statistics, whose slices are `buffers`. They follow from
    the samples and not from gradients, so they do not count where models are compared or pulled."""
    return take_statistics(values, torch.zeros_like(values), buffers) if buffers else values


def take_statistics(w: Tensor, source: Tensor, buffers: list[slice]) -> Tensor:
    """Return w (..., d) with the running statistics of `source` (..., d)."""
    if not buffers:
        return w
    w = w.clone()
    for part in buffers:
        w[..., part] = source[..., part]
    return w


def gather_statistics(w: Tensor, buffers: list[slice]) -> Tensor:
    """Return the statistics (r,) in a vector (d,), one after another; `buffers` are their slices."""
    return torch.cat([w[part] for part in buffers])
