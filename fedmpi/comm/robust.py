"""Robust aggregation: medians and trimmed means over clients, coordinate by coordinate (Yin et al., ICML 2018).

One all-to-all hands each rank some coordinates of all rows, so that no rank holds all rows whole. A coordinate's values
are sorted and added up in that order, so the result does not depend on the number of ranks.
Legend: n rows, d their length, k groups, w coordinates at one rank."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmpi.comm.transport import Transport

# Numbers of all rows that travel at once.
NUMBERS_AT_ONCE = 1 << 24
# Rounding errors of trim * members that do not count.
ROUNDING = 1e-9


@dataclass(frozen=True)
class RobustMean:
    """What replaces a mean over clients: the settings `server.aggregation` and `server.trim`."""
    # "median" or "trimmed_mean"
    kind: str
    # share of the values that a trimmed mean leaves out at either end
    trim: float

    @classmethod
    def from_settings(cls, kind: str, trim: float) -> RobustMean | None:
        """Return None if plain means stay: `kind` is "mean"."""
        return None if kind == "mean" else cls(kind, trim)

    def count_values_left_out(self, members: int) -> int:
        """Return how many of a coordinate's values are left out at either end, if a group has so many members.

        A median leaves out all but the middle one or two, a trimmed mean a share that is rounded up; at least one value
        is left."""
        most = max(0, (members - 1) // 2)
        return most if self.kind == "median" else min(most, math.ceil(self.trim * members - ROUNDING))


def trim_mean(rows: Tensor, cut: int) -> Tensor:
    """Return the mean of each column of rows (n, w) without its `cut` smallest and largest values, (w,) float32."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    kept = rows.sort(0).values[cut:len(rows) - cut]
    # One row after another: how `sum` groups them may depend on w.
    for row in kept:
        total += row
    return (total / len(kept)).float()


def trim_mean_by(world: Transport, columns: Callable[[int, int], np.ndarray], d: int, ranks: np.ndarray,
                 groups: np.ndarray, cuts: np.ndarray) -> np.ndarray | None:
    """Return the trimmed mean of each group, (k, d) float32, at rank 0; zeros for an empty group. All ranks call it.

    Args:
        columns: columns(start, stop) returns these columns of this rank's rows.
        d: the length of a row.
        ranks: the rank that holds each row, (n,).
        groups: the group of each row, (n,).
        cuts: how many values each group leaves out at either end, (k,)."""
    width = max(1, NUMBERS_AT_ONCE // max(1, len(ranks)))
    # Rows may be empty: of FedCPS, say, if all layers are personal.
    pieces = [np.zeros((0, len(cuts)), np.float32)]
    for start in range(0, d, width):
        stop = min(d, start + width)
        edges = world.divide(stop - start)
        own = torch.from_numpy(gather_columns(world, columns(start, stop), ranks, edges))
        found = [trim_mean(own[groups == j], int(cut)) if (groups == j).any() else torch.zeros(own.shape[1])
                 for j, cut in enumerate(cuts)]
        pieces.append(world.gather(torch.stack(found, 1).numpy(), np.diff(edges)))
    return np.concatenate(pieces).T if world.rank == 0 else None


def gather_columns(world: Transport, here: np.ndarray, ranks: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return columns [edges[rank], edges[rank + 1]) of all rows, (n, w).

    Args:
        here: all columns of the rows that this rank holds.
        ranks: the rank that holds each row, (n,).
        edges: where each rank's columns begin, and the end, (ranks + 1,)."""
    width = edges[world.rank + 1] - edges[world.rank]
    counts = np.bincount(ranks, minlength=world.size)
    got = world.alltoall(np.split(here, edges[1:-1], axis=1), counts * width).reshape(len(ranks), width)
    out = np.empty_like(got)
    out[np.argsort(ranks, kind="stable")] = got
    return out
