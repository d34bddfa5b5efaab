"""Sums over clients that do not depend on how the clients are grouped.

Each contribution weight * value is rounded once to fixed point (int64, scale 2^44: range +-5e5, resolution 6e-14).
Integers add up to the same total in any order, so 1, 2 or 7 ranks give the same bits. Weights add up to at most 1 (in
magnitude), so a sum stays in the range that its values are in.

Doubles in [2^8, 2^9) are the multiples of 2^-44. Small contributions are added one after another to OFFSET, the middle
of that interval, by fused multiply-adds: each addition rounds weight * value once, as if it were alone, unless the
product is a tie between two multiples, whose rounding would follow what was added before. Ties cannot occur: with the
weight's lowest bit set, the lowest set bit of weight * value is below 2^-45 (that of the weight stands for at most
2^-52, that of a small value for at most 2^6), while a tie lies exactly at a multiple of 2^-45. So rounding never
depends on the running total.

Legend: r rows, d their length, k groups."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from fedmpi.comm.gpu_staging import copy_to_device
from fedmpi.errors import FedmpiError

SCALE = 2.0 ** 44
# Largest magnitude of a value: RANGE * SCALE < 2^63.
RANGE = 5e5
# Small values are below 2^7, so that OFFSET + sum of weight * value stays in [2^8, 2^9).
SMALL_LIMIT = 100.
OFFSET = 1.5 * 2.0 ** 8
# Numbers at once: what fits into a core's cache, and much of a GPU.
NUMBERS_PER_BLOCK, NUMBERS_PER_BLOCK_GPU = 1 << 16, 1 << 24
# Rows whose pieces stay in the cache until they are added.
ROWS_AT_ONCE = 4

# chain(small, values, factors) adds factors[i] * values[i] to small, (n,) float64, each with one rounding.
Chain = Callable[[Tensor, Sequence[Tensor], Sequence[float]], None]


class BadWeights(FedmpiError):
    """Weights of which there are no weighted sums."""

    def __init__(self, weights: Tensor, field: str = ""):
        bad = int((~weights.isfinite()).sum())
        super().__init__(f"the weights of rows{field and ' of ' + field} have {bad} non-finite values of "
                         f"{weights.numel()}; look for a division by zero, such as the mean by weights that are all 0")


class NotFinite(FedmpiError):
    """A row that cannot be summed; `row` is its position, by which the caller names the client and the field.

    With `idle` it is the state of a client that did not train, which `faults.bad_update` does not leave out."""

    def __init__(self, row: int, values: Tensor, field: str = "", idle: bool = False):
        bad = int((~values.isfinite()).sum())
        self.row, self.values = row, values
        what = (f"{bad} non-finite values of {values.numel()}" if bad else
                f"values up to {values.abs().max():.3g}, out of the range of exact sums ({RANGE:g})")
        name, remedy = ("state", "it did not train in this round: look at what the method's `idle` computes, and at "
                        "this client's data") if idle else (
            "update", "lower train.lr, look at this client's data, or leave such updates out (faults.bad_update=skip)")
        if not values.is_floating_point():
            remedy = "these are integers: let clients send them in a larger unit, or the server gather() them"
        super().__init__(f"{name}{field and ' of ' + field} has {what}; {remedy}")


def accumulate(rows: Sequence[Tensor], weights: Tensor, into: Tensor, groups: Tensor | None = None) -> None:
    """Add weights[r] * rows[r] in fixed point to a sum, or to the sum of each row's group.

    Args:
        rows: r vectors (d,) of any float type.
        weights: (r,) float64.
        into: the sum, (d,) int64, or with groups the sums, (k, d) int64.
        groups: the group of each row, (r,).

    Raises:
        NotFinite: if a row cannot be summed; `into` is then of no use.
        BadWeights: if a weight is not finite."""
    if not math.isfinite(weights.sum()):
        raise BadWeights(weights)
    by_row = [None] * len(rows) if groups is None else groups.tolist()
    sums = [(into if group is None else into[group], [r for r in range(len(rows)) if by_row[r] == group])
            for group in ([None] if into.ndim == 1 else sorted(set(by_row)))]
    if into.is_cuda and rows and add_at_once(rows, weights, sums):
        return
    chain = choose_chain(into.device)
    for total, members in sums:
        add_rows({r: rows[r] for r in members}, weights[members], total, chain)


def choose_chain(device: torch.device) -> Chain:
    """Return how rows are added one after another on a device.

    On a GPU it rounds as `add_at_once` does, which adds the rows of another rank if all of those are small."""
    return add_fused if device.type != "cuda" and fuses_additions(device) else add_rounded


def add_at_once(rows: Sequence[Tensor], weights: Tensor, sums: list[tuple[Tensor, list[int]]]) -> bool:
    """Add many rows at once, as is best on a GPU, and look at the numbers only once.

    Every contribution is rounded by itself, so no order or grouping changes a bit. The product of weight and value is
    rounded to float64 before, which a fused multiply-add does not do: of 88 million numbers one had another last bit.

    Args:
        sums: each total with its members, the positions of its rows.

    Returns:
        False, and nothing is added, if some values are not small."""
    order = [r for _, members in sums for r in members]
    factors = copy_to_device(set_lowest_bit(weights[order]).numpy(), rows[0].device).split([len(m) for _, m in sums])
    parts, largest = [], []
    for (total, members), mine in zip(sums, factors, strict=True):
        at_once, part = max(1, NUMBERS_PER_BLOCK_GPU // max(1, total.numel())), torch.zeros_like(total)
        for first in range(0, len(members) if total.numel() else 0, at_once):
            values = torch.stack([rows[r].detach() for r in members[first:first + at_once]])
            largest.append(values.abs().amax())
            values = values.double().mul_(mine[first:first + at_once, None]).add_(OFFSET).sub_(OFFSET)
            part += values.sum(0).mul_(SCALE).to(torch.int64)
        parts.append(part)
    # The comparison is false for nan, too.
    if largest and not float(torch.stack(largest).amax()) < SMALL_LIMIT:
        return False
    for (total, _), part in zip(sums, parts, strict=True):
        total += part
    return True


def add_rows(rows: dict[int, Tensor], weights: Tensor, into: Tensor, chain: Chain) -> None:
    """Add rows, by their positions, with their weights to one sum, (d,), block by block."""
    if not rows:
        return
    block, ids = NUMBERS_PER_BLOCK_GPU if into.is_cuda else NUMBERS_PER_BLOCK, list(rows)
    pieces = {r: row.detach().split(block) for r, row in rows.items()}
    factors, exact_weights = set_lowest_bit(weights).tolist(), weights.tolist()
    for b, total in enumerate(into.split(block)):
        small = torch.full(total.shape, OFFSET, dtype=torch.float64, device=into.device)
        for first in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            values = [add_large_of(r, rows[r], pieces[r][b], weight, total)
                      for r, weight in zip(ids[some], exact_weights[some], strict=True)]
            chain(small, values, factors[some])
        total.add_(small.sub_(OFFSET).mul_(SCALE).to(torch.int64))


def add_fused(small: Tensor, values: Sequence[Tensor], factors: Sequence[float]) -> None:
    """Add by fused multiply-adds, on devices where PyTorch's additions fuse."""
    for value, factor in zip(values, factors, strict=True):
        small.add_(value, alpha=factor)


def add_rounded(small: Tensor, values: Sequence[Tensor], factors: Sequence[float]) -> None:
    """Add contributions that are rounded before, on devices where PyTorch's additions do not fuse."""
    for value, factor in zip(values, factors, strict=True):
        small.add_(value.double().mul_(factor).add_(OFFSET).sub_(OFFSET))


def add_large_of(r: int, row: Tensor, values: Tensor, weight: float, total: Tensor) -> Tensor:
    """Return a piece of a row without its large values, which are added to a fixed-point total.

    Args:
        r: position of the row, for the error.
        row: the whole row.
        values: its piece.
        weight: of the row.
        total: the sum of these pieces.

    Raises:
        NotFinite: if the row cannot be summed."""
    if is_surely_small(values):
        return values
    most = find_max_magnitude(values)
    # The comparison is false for nan, too.
    if not most < RANGE:
        raise NotFinite(r, row)
    return add_large(values, weight, total) if most >= SMALL_LIMIT else values


def add_large(values: Tensor, weight: float, total: Tensor) -> Tensor:
    """Add the large ones of some values to a fixed-point total; return the values with 0 in their place."""
    large = values.abs() >= SMALL_LIMIT
    total[large] += (values[large].double() * (weight * SCALE)).round_().to(torch.int64)
    return values.masked_fill(large, 0)


def set_lowest_bit(weights: Tensor) -> Tensor:
    """Return weights, float64, with their lowest bits set: a relative change of at most 2e-16."""
    return (weights.view(torch.int64) | 1).view(torch.float64)


@cache
def fuses_additions(device: torch.device) -> bool:
    """Return whether PyTorch adds alpha * values with one rounding on a device.

    A long and a short vector are tried: the library may add what is left over of vector registers in another way."""
    value, weight = 1 + 2. ** -23, 1 + 2. ** -52
    for n in (1, 67):
        total = torch.full((n,), -value, dtype=torch.float64, device=device)
        total.add_(torch.full((n,), value, device=device), alpha=weight)
        # The last term is lost if the product is rounded first.
        if not (total == 2. ** -52 + 2. ** -75).all():
            return False
    return True


def is_surely_small(row: Tensor) -> bool:
    """Return whether the sum of squares shows that all values are small: three times as fast as to find the largest.
    """
    return row.dtype == torch.float32 and float(row.dot(row)) < SMALL_LIMIT ** 2


def find_max_magnitude(row: Tensor) -> float:
    """Return the largest |value|, nan if there is one."""
    if not row.numel():
        return 0.
    low, high = torch.aminmax(row)
    return max(-float(low), float(high)) if low == low else float("nan")


def read_sum(total: Tensor, scale: float = 1., dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a sum over clients, times `scale`, as floats.

    The type of `total` says how it was added up: int64 is fixed point (server.reduce = exact), a float type is itself.
    So nobody but the ranks that add up needs to know the setting."""
    return (total * scale).to(dtype) if total.is_floating_point() else read_fixed_point(total, scale, dtype)


def read_fixed_point(total: Tensor, scale: float = 1., dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a fixed-point total, times `scale`, as floats."""
    out = torch.empty(total.shape, dtype=dtype, device=total.device)
    block = NUMBERS_PER_BLOCK_GPU if total.is_cuda else NUMBERS_PER_BLOCK
    for piece, part in zip(out.view(-1).split(block), total.reshape(-1).split(block), strict=True):
        piece.copy_(part.double().mul_(scale / SCALE))
    return out
