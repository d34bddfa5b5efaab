"""Rows: the handle that server code holds on what the participants of a round sent.

The data are one row per client, spread over the ranks that host clients; most verbs are one order and one collective
(`gram` is one for every tile of columns, `combine` one for every sum).
Legend: n rows (one per participant, or of what clients keep: one per client), d length of a row, k groups, m sums."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedmpi.comm import exact
from fedmpi.comm.order_performer import MIN_WEIGHT_SUM, OrderPerformer
from fedmpi.comm.orders import UP, RowRef
from fedmpi.comm.robust import RobustMean

if TYPE_CHECKING:
    from fedmpi.comm.rank_pool import RankPool

# What server code gives as weights, groups or coefficients.
Numbers: TypeAlias = np.ndarray | Tensor | Sequence[object]
# Any: a NamedTuple like Up or Mine, with a handle in place of each tensor, which no type can say.
FieldHandles: TypeAlias = Any
# Columns of a gram matrix at once: fixed, so that its bits do not depend on the number of ranks.
TILE_COLUMNS = 1 << 16
# Types of fields whose numbers single precision may not hold: rows of others travel in that.
WIDE_TYPES = (torch.float64, torch.int64, torch.int32)


class Mixed(NamedTuple):
    """What the server addresses to each participant in one field of its message: see `Rows.mix`."""
    rows: Rows
    # (participants, m, n)
    coefficients: np.ndarray
    # of what each participant receives: (d,) or (m, d)
    shape: tuple[int, ...]


class RowsStay(TypeError):
    """Server code takes rows for a tensor or a list."""

    def __init__(self, field: str):
        super().__init__(f"the rows{field and ' of ' + field} lie at the ranks of their clients, one row each; ask for "
                         "mean(weights), sum(weights), mean_by(groups, k, old) or, if they are short, gather()")


@dataclass(frozen=True)
class Rows:
    """One `Up` field of all participants, or one `Mine` field of all clients, (n, d).

    `rows[block]` is a slice of every row. Sums and means of integers are float64."""
    pool: RankPool
    ref: RowRef
    dtype: torch.dtype
    # of the field, for errors
    name: str = ""

    def __getitem__(self, block: slice) -> Rows:
        if not isinstance(block, slice):
            raise RowsStay(self.name)
        start, stop, step = block.indices(self.width)
        if step != 1:
            raise TypeError(f"rows{self.name and ' of ' + self.name}[::{step}]: a slice of rows is one block, without "
                            "a step; take the mean or the sum first and then every so many of its numbers")
        return replace(self, ref=self.ref.columns(start, stop))

    def __iter__(self) -> NoReturn:
        raise RowsStay(self.name)

    def _refuse_arithmetic(self, other: object) -> NoReturn:
        """Raise RowsStay: rows are not numbers."""
        raise RowsStay(self.name)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __matmul__ = __rmatmul__ = (
        _refuse_arithmetic)
    # NumPy asks its counterpart, and would else compute with each element
    __array_ufunc__ = None

    @property
    def ids(self) -> np.ndarray:
        """Return the client of each row, (n,), ascending."""
        return self.pool.find_clients(self.ref.source)

    @property
    def width(self) -> int:
        """Return the length of a row, d."""
        return self.ref.width

    @property
    def sum_type(self) -> torch.dtype:
        """Return the type of sums and means."""
        return self.dtype if self.dtype.is_floating_point else torch.float64

    def mean(self, weight: Numbers | None = None) -> Tensor:
        """Return the mean over participants, (d,), or its robust replacement, for which weights do not count.

        Args:
            weight: (n,), of any sum; default: all rows count alike."""
        if self.robust:
            return self._middle_by(self.robust, np.zeros(len(self.ids), np.int64), 1)[0]
        # `sum` divides by what these weights add up to, which is 1 up to rounding. Without this second division the
        # last bits of results would change.
        return self.sum(normalise_weights(np.ones(len(self.ids)) if weight is None else weight))

    def sum(self, weight: Numbers | None = None) -> Tensor:
        """Return sum_i weight_i row_i, (d,). A sum of integers by whole weights is whole.

        Args:
            weight: (n,); default: all are 1."""
        weights = np.ones(len(self.ids)) if weight is None else self._finite(copy_to_array(weight))
        # Exact sums want weights of at most 1 in all.
        scale = max(np.abs(weights).sum(), MIN_WEIGHT_SUM)
        total = self.pool.call(OrderPerformer.sum_rows, self.ref.to_array(), weights / scale)
        found = self._read(total, scale)
        whole = not self.dtype.is_floating_point and (weights == np.rint(weights)).all()
        return found.round() if whole else found

    def mean_by(self, group: Numbers, k: int, old: Tensor, weight: Numbers | None = None) -> Tensor:
        """Return the mean of each group, (k, d), or its robust replacement, for which weights do not count.

        Args:
            group: the group of each row, (n,), from 0 to k - 1.
            k: the number of groups.
            old: what a group keeps whose weights add up to 0, (k, d).
            weight: (n,), of any sum; default: all rows count alike."""
        group = copy_to_array(group, np.int64)
        weights = np.ones(len(group)) if weight is None else self._finite(copy_to_array(weight))
        totals = np.bincount(group, weights, minlength=k)
        filled = torch.from_numpy(totals != 0)[:, None]
        if self.robust:
            return torch.where(filled, self._middle_by(self.robust, group, k), old)
        shares = weights / np.where(totals != 0, totals, 1)[group]
        scale = np.ones(k)
        if (weights < 0).any():
            # Exact sums want weights of at most 1 in all, and shares of both signs may have more.
            scale = np.maximum(1, np.bincount(group, np.abs(shares), k))
        total = self.pool.call(OrderPerformer.sum_groups, self.ref.to_array(), shares / scale[group], group,
                               np.int64(k))
        return torch.where(filled, self._read(total) * torch.from_numpy(scale).to(self.sum_type)[:, None], old)

    def gather(self) -> Tensor:
        """Return every row, (n, d): for heads, low-rank images and small vectors."""
        like = torch.empty(0, dtype=self.dtype if self.dtype in WIDE_TYPES else torch.float32).numpy()
        return torch.from_numpy(self.pool.call(OrderPerformer.gather_rows, self.ref.to_array(), like)).to(self.dtype)

    def combine(self, weights: Numbers) -> Tensor:
        """Return weights @ rows, (m, d), for weights (m, n): m weighted sums."""
        return torch.stack([self.sum(w) for w in copy_to_array(weights)])

    def gram(self, origin: Tensor | None = None, beside: Tensor | None = None,
             blocks: Sequence[slice] = (slice(None),)) -> Tensor:
        """Return all inner products of rows, (n, n) float64: what PCA, cosines and distances of long rows need.

        Args:
            origin: (d,), subtracted from every row first: for cosines of updates, and for small distances without loss
                of digits.
            beside: rows of the server, (k, d), that join the participants' as the last ones: (n + k, n + k).
            blocks: the slices of a row that count; `model.trainable` leaves running statistics out."""
        return reduce(torch.add, [self[block]._multiply(None if origin is None else origin[block],
                                                        None if beside is None else beside[:, block])
                                  for block in blocks])

    def _multiply(self, origin: Tensor | None, beside: Tensor | None) -> Tensor:
        """Return all inner products of whole rows, see `gram`."""
        size = len(self.ids) + (0 if beside is None else len(beside))
        total = torch.zeros(size, size, dtype=torch.float64)
        for start in range(0, self.width, TILE_COLUMNS):
            tile = self[start:start + TILE_COLUMNS].gather().double()
            if beside is not None:
                tile = torch.cat([tile, beside[:, start:start + TILE_COLUMNS].double()])
            if origin is not None:
                tile = tile - origin[start:start + TILE_COLUMNS].double()
            total += tile @ tile.T
        return total

    def distances(self, group: Numbers, centres: Tensor, blocks: Sequence[slice] = (slice(None),)) -> Tensor:
        """Return the distance of each row from its group's centre, (n,), which is computed where the row lies.

        Args:
            group: the group of each row, (n,).
            centres: (k, d).
            blocks: the slices of a row that count, see `gram`."""
        groups = copy_to_array(group, np.int64)
        found = [self.pool.call(OrderPerformer.measure_distances, self[block].ref.to_array(), groups,
                                np.ascontiguousarray(centres[:, block].numpy())) for block in blocks]
        # of a single block as it is: a root of a square may have other last bits
        return torch.from_numpy(found[0] if len(found) == 1 else np.sqrt(np.square(found).sum(0)))

    def mix(self, coefficients: Numbers) -> Mixed:
        """Address to each participant its own sums over rows; a single coefficient of 1 fetches a row.

        Args:
            coefficients: (participants, n) for one row each, (d,), or (participants, m, n) for m rows, (m, d)."""
        blocks = self._finite(copy_to_array(coefficients))
        shape = (self.width,) if blocks.ndim == 2 else (blocks.shape[1], self.width)
        return Mixed(self, blocks.reshape(len(blocks), -1, len(self.ids)), shape)

    @property
    def robust(self) -> RobustMean | None:
        """Return what replaces `mean` and `mean_by` of what participants send.

        Weights then do not count, since a client could claim any."""
        return self.pool.robust if self.ref.source == UP else None

    def _finite(self, weights: np.ndarray) -> np.ndarray:
        """Return weights as they are. Raises BadWeights if one is not finite: sums would be rounded to anything."""
        if not np.isfinite(weights).all():
            raise exact.BadWeights(torch.from_numpy(weights), self.name)
        return weights

    def _middle_by(self, robust: RobustMean, group: np.ndarray, k: int) -> Tensor:
        cuts = [robust.count_values_left_out(n) for n in np.bincount(group, minlength=k)]
        found = self.pool.call(OrderPerformer.trim_groups, self.ref.to_array(), group, np.array(cuts))
        return torch.from_numpy(found).to(self.sum_type)

    def _read(self, total: np.ndarray | Tensor, scale: float = 1.) -> Tensor:
        """Return a sum as floats on the CPU."""
        return exact.read_sum(torch.as_tensor(total).cpu(), scale, self.sum_type)


def copy_to_array(values: Numbers, dtype: type = np.float64) -> np.ndarray:
    """Return numbers as an array on the host."""
    return np.asarray(values.cpu() if isinstance(values, Tensor) else values, dtype)


def normalise_weights(weight: Numbers) -> np.ndarray:
    """Return weights, (n,), scaled to a sum of 1."""
    weights = copy_to_array(weight)
    # A sum of 0 gives nan, which `Rows.sum` refuses.
    with np.errstate(invalid="ignore", divide="ignore"):
        return weights / weights.sum()


def make_rows(pool: RankPool, source: int, like: tuple[Tensor, ...]) -> FieldHandles:
    """Return a handle on every field of Up or Mine.

    Args:
        pool: all ranks.
        source: UP or MINE.
        like: one client's Up or Mine, as a template."""
    # A NamedTuple takes its fields one by one; mypy knows only that it is a tuple.
    make: Callable[..., FieldHandles] = type(like)
    names = getattr(like, "_fields", ("",) * len(like))
    return make(*(Rows(pool, RowRef(source, i, 0, v.numel()), v.dtype, names[i]) for i, v in enumerate(like)))
