"""Sums over clients that do not depend on how the clients are grouped.

Each contribution weight * value is rounded once to fixed point (int64, scale 2^44: range +-5e5, resolution 6e-14);
integers add up to the same total in any order, so 1, 2 or 7 ranks give the same bits. Weights add up to 1 at most
(in magnitude), so a sum stays in the range that its values are in.

Doubles in [2^8, 2^9) are the multiples of 2^-44. Small contributions are added one after another to OFFSET, the middle
of it, by fused multiply-adds: each addition rounds weight * value once, as if alone, unless it lies in the very middle
of two multiples, where the rounding would follow what was added before. A weight whose last bit is set has no such
products (its last bit stands for 2^-52 or less, a small value's for 2^6 or less, so the product's for less than the
2^-45 of a middle)."""
from __future__ import annotations

from functools import cache

import torch

from fedmpi.comm.gpu_staging import sent
from fedmpi.errors import FedmpiError

SCALE = 2.0 ** 44
RANGE = 5e5      # of values: RANGE * SCALE < 2^63
SMALL_LIMIT = 100.     # of values: below 2^7, so that OFFSET + sum of weight * value stays in [2^8, 2^9)
OFFSET = 1.5 * 2.0 ** 8
NUMBERS_PER_BLOCK, BLOCK_GPU = 1 << 16, 1 << 24      # numbers at once: inside a core's cache; much of a GPU
ROWS_AT_ONCE = 4      # rows whose pieces stay in the cache until they are added


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

    rows: r vectors (d,) of any float type; weights (r,) float64; into int64. Raises NotFinite; `into` is then of no
    use."""
    groups = [None] * len(rows) if groups is None else groups.tolist()
    sums = [(into if group is None else into[group], [r for r in range(len(rows)) if groups[r] == group])
            for group in ([None] if into.ndim == 1 else sorted(set(groups)))]
    if into.is_cuda and rows and added_at_once(rows, weights, sums):
        return
    chain = chained if fuses_additions(into.device) else singly
    for total, members in sums:
        add_rows({r: rows[r] for r in members}, weights[members], total, chain)


def added_at_once(rows, weights: torch.Tensor, sums) -> bool:
    """Add rows to `sums`, each a total with its members, many at once, with a single look at the numbers: what a GPU
    is good at. Return False, and add nothing, where some values are not small.

    Every contribution is rounded by itself, so that no order or grouping changes a bit."""
    order = [r for _, members in sums for r in members]
    factors, parts, largest = sent(odd(weights[order]).numpy(), rows[0].device).split([len(m) for _, m in sums]), [], []
    for (total, members), mine in zip(sums, factors, strict=True):
        at_once, part = max(1, BLOCK_GPU // max(1, total.numel())), torch.zeros_like(total)
        for first in range(0, len(members) if total.numel() else 0, at_once):
            values = torch.stack([rows[r].detach() for r in members[first:first + at_once]])
            largest.append(values.abs().amax())
            values = values.double().mul_(mine[first:first + at_once, None]).add_(OFFSET).sub_(OFFSET)
            part += values.sum(0).mul_(SCALE).to(torch.int64)
        parts.append(part)
    if largest and not float(torch.stack(largest).amax()) < SMALL_LIMIT:      # false for nan as well
        return False
    for (total, _), part in zip(sums, parts, strict=True):
        total += part
    return True


def add_rows(rows: dict[int, torch.Tensor], weights: torch.Tensor, into: torch.Tensor, chain):
    """Add rows, by their positions, with their weights to one sum, block by block."""
    if not rows:
        return
    block, ids = BLOCK_GPU if into.is_cuda else NUMBERS_PER_BLOCK, list(rows)
    pieces = {r: row.detach().split(block) for r, row in rows.items()}
    factors, weights = odd(weights).tolist(), weights.tolist()
    for b, total in enumerate(into.split(block)):
        small = torch.full(total.shape, OFFSET, dtype=torch.float64, device=into.device)
        for first in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            values = [split_large(r, rows[r], pieces[r][b], weight, total)
                      for r, weight in zip(ids[some], weights[some], strict=True)]
            chain(small, values, factors[some])
        total.add_(small.sub_(OFFSET).mul_(SCALE).to(torch.int64))


def chained(small: torch.Tensor, values, factors) -> None:
    for value, factor in zip(values, factors, strict=True):
        small.add_(value, alpha=factor)


def singly(small: torch.Tensor, values, factors) -> None:
    for value, factor in zip(values, factors, strict=True):
        small.add_(value.double().mul_(factor).add_(OFFSET).sub_(OFFSET))


def split_large(r: int, row: torch.Tensor, values: torch.Tensor, weight: float, total: torch.Tensor) -> torch.Tensor:
    """Return the small ones of a row's `values`; add the others to a fixed-point total. Raises NotFinite."""
    if surely_small(values):
        return values
    most = max_magnitude(values)
    if not most < RANGE:      # false for NaN as well
        raise NotFinite(r, row)
    return without_large(values, weight, total) if most >= SMALL_LIMIT else values


def without_large(values: torch.Tensor, weight: float, total: torch.Tensor) -> torch.Tensor:
    """Add the large ones of some values to a fixed-point total; return the others, with 0 in their place."""
    large = values.abs() >= SMALL_LIMIT
    total[large] += (values[large].double() * (weight * SCALE)).round_().to(torch.int64)
    return values.masked_fill(large, 0)


def odd(weights: torch.Tensor) -> torch.Tensor:
    """Return weights, float64, with their last bits set: a relative change of 2e-16 at most."""
    return (weights.view(torch.int64) | 1).view(torch.float64)


@cache
def fuses_additions(device: torch.device) -> bool:
    """Say whether PyTorch adds alpha * values with one rounding on a device, in vectors and in what is left over."""
    value, weight = 1 + 2. ** -23, 1 + 2. ** -52
    for n in (1, 67):
        total = torch.full((n,), -value, dtype=torch.float64, device=device)
        total.add_(torch.full((n,), value, device=device), alpha=weight)
        if not (total == 2. ** -52 + 2. ** -75).all():      # the last term is lost if the product is rounded first
            return False
    return True


def surely_small(row: torch.Tensor) -> bool:
    """Say whether the sum of squares shows that all |values| are below SMALL: three times as fast as the largest."""
    return row.dtype == torch.float32 and float(row.dot(row)) < SMALL_LIMIT ** 2


def max_magnitude(row: torch.Tensor) -> float:
    """Return the largest |value|, nan where there is one."""
    if not row.numel():
        return 0.
    low, high = torch.aminmax(row)
    return max(-float(low), float(high)) if low == low else float("nan")


def read_sum(total: torch.Tensor, scale: float = 1., dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return a sum over clients, times `scale`, as floats.

    The type of `total` says how it was added up: int64 is fixed point (server.reduce = exact), a float type is itself.
    So nobody but the ranks that add up needs to know the setting."""
    return (total * scale).to(dtype) if total.is_floating_point() else value(total, scale, dtype)


def value(total: torch.Tensor, scale: float = 1., dtype=torch.float64) -> torch.Tensor:
    """Return a fixed-point total, times `scale`, as floats."""
    out = torch.empty(total.shape, dtype=dtype, device=total.device)
    block = BLOCK_GPU if total.is_cuda else NUMBERS_PER_BLOCK
    for piece, part in zip(out.view(-1).split(block), total.reshape(-1).split(block), strict=True):
        piece.copy_(part.double().mul_(scale / SCALE))
    return out
