"""Robust aggregation: medians and trimmed means over clients, coordinate by coordinate (Yin et al., ICML 2018).

In one all-to-all each rank is handed some coordinates of all rows, so that no rank holds all rows whole. A coordinate's
values are sorted and added up in that order: the result depends on no number of ranks.
Legend: n rows, d their length, k groups, w coordinates at one rank."""
from __future__ import annotations

import math

import numpy as np
import torch

NUMBERS_AT_ONCE = 1 << 24      # numbers of all rows that travel at once


def values_left_out(members: int, robust: str, trim: float) -> int:
    """Return how many of a coordinate's values are left out at either end: all but the middle one or two for a median,
    a share rounded up for a trimmed mean; one value is left at least."""
    most = max(0, (members - 1) // 2)
    return most if robust == "median" else min(most, math.ceil(trim * members - 1e-9))


def middle(rows: torch.Tensor, cut: int) -> torch.Tensor:
    """Return the mean (w,) float32 of each column of rows (n, w) without its `cut` smallest and largest values."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    kept = rows.sort(0).values[cut:len(rows) - cut]
    for row in kept:      # one after another: how `sum` groups them may depend on w
        total += row
    return (total / len(kept)).float()


def middle_by(world, rows, d: int, ranks: np.ndarray, groups: np.ndarray, cuts: np.ndarray) -> np.ndarray | None:
    """Return the middle of each group, (k, d) float32, at rank 0; zeros for an empty one. Called by all ranks.

    rows(start, stop) are columns of this rank's rows; ranks (n,) and groups (n,) say where each row lies and in which
    group it is; cuts (k,) how many values each group leaves out."""
    width = max(1, NUMBERS_AT_ONCE // max(1, len(ranks)))
    pieces = []
    for start in range(0, d, width):
        stop = min(d, start + width)
        edges = np.linspace(0, stop - start, world.size + 1).astype(int)
        mine = torch.from_numpy(columns_of_rank(world, rows(start, stop), ranks, edges))
        found = [middle(mine[groups == j], int(c)) if (groups == j).any() else torch.zeros(mine.shape[1])
                 for j, c in enumerate(cuts)]
        pieces.append(world.gather(torch.stack(found, 1).numpy(), np.diff(edges)))
    return np.concatenate(pieces).T if world.rank == 0 else None


def columns_of_rank(world, here: np.ndarray, ranks: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return columns [edges[rank], edges[rank + 1]) of all rows, (n, w), given the rows that are here."""
    width = edges[world.rank + 1] - edges[world.rank]
    counts = np.bincount(ranks, minlength=world.size)
    got = world.alltoall(np.split(here, edges[1:-1], axis=1), counts * width).reshape(len(ranks), width)
    out = np.empty_like(got)
    out[np.argsort(ranks, kind="stable")] = got
    return out
