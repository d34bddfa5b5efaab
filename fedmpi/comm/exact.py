"""Sums over clients that do not depend on how the clients are grouped.

Each contribution weight * value is rounded once to fixed point (int64, scale 2^44: range +-5e5, resolution 6e-14);
integers add up to the same total in any order, so 1, 2 or 7 ranks give the same bits. Weights add up to 1 at most
(in magnitude), so a sum stays in the range that its values are in."""
from __future__ import annotations

import numpy as np
import torch

from fedmpi.errors import FedmpiError

SCALE = 2.0 ** 44
RANGE = 5e5      # of values: RANGE * SCALE < 2^63
SMALL = 100.     # of values: well below 2^7, for the fast way
OFFSET = 1.5 * 2.0 ** 8
BITS = int(np.float64(OFFSET).view(np.int64))
BLOCK, BLOCK_GPU = 1 << 14, 1 << 24      # numbers in scratch: well inside a core's cache; much of a GPU at once


class NotFinite(FedmpiError):
    """A row that cannot be summed; `row` is its position, for the caller to name the client and the field."""

    def __init__(self, row: int, values: torch.Tensor, field: str = ""):
        bad = int((~values.isfinite()).sum())
        self.row, self.values = row, values
        what = (f"{bad} non-finite values of {values.numel()}" if bad else
                f"values up to {values.abs().max():.3g}, out of the range of exact sums ({RANGE:g})")
        super().__init__(f"update{field and ' of ' + field} has {what}; lower train.lr, look at this client's data, or "
                         "leave such updates out (faults.bad_update=skip)")


def accumulate(rows, weights: torch.Tensor, into: torch.Tensor, groups: torch.Tensor | None = None):
    """Add weights[r] * rows[r] in fixed point to `into` (d,) or, with groups, to `into[groups[r]]` (k, d).

    rows: r vectors (d,) of any float type; weights (r,) float64; into int64. Raises NotFinite."""
    largest = [0. if surely_small(row) else max_magnitude(row) for row in rows]
    for r, most in enumerate(largest):
        if not most < RANGE:      # false for NaN as well
            raise NotFinite(r, rows[r])
    groups = [None] * len(rows) if groups is None else groups.tolist()
    for group in [None] if into.ndim == 1 else sorted(set(groups)):
        members = [r for r in range(len(rows)) if groups[r] == group]
        total = into if group is None else into[group]
        small = [r for r in members if largest[r] < SMALL]
        (add_small_on_gpu if into.is_cuda else add_small)([rows[r] for r in small], weights[small], total)
        for r in set(members) - set(small):
            total.add_((rows[r].double() * (float(weights[r]) * SCALE)).round_().to(torch.int64))


def surely_small(row: torch.Tensor) -> bool:
    """Say whether the sum of squares shows that all |values| are below SMALL: three times as fast as the largest."""
    return row.dtype == torch.float32 and float(row.dot(row)) < SMALL ** 2


def max_magnitude(row: torch.Tensor) -> float:
    """Return the largest |value|, nan where there is one."""
    if not row.numel():
        return 0.
    low, high = torch.aminmax(row)
    return max(-float(low), float(high)) if low == low else float("nan")


def add_small(rows: list[torch.Tensor], weights: torch.Tensor, into: torch.Tensor):
    """The same for values below SMALL, block by block, in a cache.

    OFFSET + v, with OFFSET = 1.5 * 2^8, lies in [2^8, 2^9), where doubles are the multiples of 2^-44: the addition
    rounds v, and the bits of the sum, read as an integer, are those of OFFSET plus v in fixed point."""
    total, rows, weights = into.numpy(), [row.detach().numpy() for row in rows], weights.tolist()
    scratch, offset = np.empty(min(BLOCK, len(total))), as_int64(BITS * len(rows))
    for start in range(0, len(total), BLOCK):
        part = total[start:start + BLOCK]      # NumPy's passes: PyTorch adds integers at a quarter of the speed
        term = scratch[:len(part)]
        for row, weight in zip(rows, weights, strict=True):
            np.copyto(term, row[start:start + BLOCK])
            term *= weight
            term += OFFSET
            part += term.view(np.int64)
        part -= offset


def add_small_on_gpu(rows: list[torch.Tensor], weights: torch.Tensor, into: torch.Tensor):
    """The same in few large passes."""
    if not rows:
        return
    weights = weights.to(into.device)[:, None]
    block = max(1024, BLOCK_GPU // len(rows))
    scratch = torch.empty((len(rows), min(block, into.numel())), dtype=torch.float64, device=into.device)
    for start in range(0, into.numel(), block):
        part = into[start:start + block]
        terms = scratch[:, :part.numel()]
        for term, row in zip(terms, rows, strict=True):
            term.copy_(row[start:start + block])
        bits = terms.mul_(weights).add_(OFFSET).view(torch.int64)
        part.add_(bits.sum(0)).sub_(as_int64(BITS * len(rows)))


def as_int64(number: int) -> int:
    """Wrap around as int64 arithmetic does."""
    return (number + 2 ** 63) % 2 ** 64 - 2 ** 63


def value(total: torch.Tensor) -> torch.Tensor:
    """Return a fixed-point total as float64."""
    return total.double() / SCALE
