"""Rows: the handle that server code holds on what the participants of a round sent.

The data are one row per client, spread over the worker ranks; each verb is one order and one collective.
Legend: n rows (one per participant, or of what clients keep: one per client), d length of a row, k clusters."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from fedmpi.comm import exact, robust
from fedmpi.comm.orders import UP, Order, RankPool

TILE = 1 << 16      # columns of a gram matrix at once: fixed, so that its bits depend on no number of ranks


class Mixed(NamedTuple):
    """What `messages` addresses to each participant in one field of its Note: see `Rows.mix`."""
    rows: Rows
    coefficients: np.ndarray      # (participants, m, n)
    shape: tuple[int, ...]        # (d,) or (m, d)


@dataclass(frozen=True)
class Rows:
    """One `Up` field of all participants, or one `Mine` field of all clients, (n, d). `rows[block]` is a slice of
    every row."""
    crew: RankPool
    source: int
    field: int
    start: int
    stop: int
    dtype: torch.dtype

    def __getitem__(self, block: slice) -> Rows:
        start, stop, _ = block.indices(self.stop - self.start)
        return Rows(self.crew, self.source, self.field, self.start + start, self.start + stop, self.dtype)

    @property
    def ids(self) -> np.ndarray:
        """Return the client of each row, (n,), ascending."""
        return self.crew.ids if self.source == UP else np.arange(len(self.crew.homes))

    def mean(self, weight=None) -> torch.Tensor:
        """Return the mean over participants (d,), weighted by `weight` (n,) where it is given."""
        if self.robust:
            return self._middle_by(np.zeros(len(self.ids), np.int64), 1)[0]
        return self.sum(normalised(np.ones(len(self.ids)) if weight is None else weight))

    def sum(self, weight=None) -> torch.Tensor:
        """Return sum_i weight_i row_i, (d,); weights are 1 where not given."""
        weights = np.ones(len(self.ids)) if weight is None else as_array(weight)
        scale = max(np.abs(weights).sum(), 1e-300)      # exact sums want weights of at most 1 in all
        total = self.crew.call(Order.SUM, self.what, weights / scale)
        return self._value(total, scale)

    def mean_by(self, group, k: int, old: torch.Tensor, weight=None) -> torch.Tensor:
        """Return the mean of each of k groups (k, d), `group` (n,) saying who is in which; an empty one keeps `old`."""
        group = as_array(group, np.int64)
        weights = np.ones(len(group)) if weight is None else as_array(weight)
        totals = np.bincount(group, weights, minlength=k)
        filled = torch.from_numpy(totals > 0)[:, None]
        if self.robust:
            return torch.where(filled, self._middle_by(group, k), old)
        shares = weights / np.where(totals > 0, totals, 1)[group]
        total = self.crew.call(Order.SUM_BY, self.what, shares, group, np.int64(k))
        return torch.where(filled, self._value(total), old)

    def gather(self) -> torch.Tensor:
        """Return every participant's row (n, d): for heads, low-rank images and small vectors."""
        return torch.from_numpy(self.crew.call(Order.GATHER, self.what)).to(self.dtype)

    def combine(self, weights) -> torch.Tensor:
        """Return weights @ rows, (m, d), for weights (m, n): m weighted sums."""
        return torch.stack([self.sum(w) for w in as_array(weights)])

    def gram(self, origin: torch.Tensor | None = None, beside: torch.Tensor | None = None) -> torch.Tensor:
        """Return all inner products of rows, (n, n) float64: what PCA, cosines and distances of long rows need.

        `origin` (d,) is taken off every row first: for cosines of updates, and for small distances without a loss.
        Rows that the server holds, `beside` (k, d), join the participants' as the last ones: (n + k, n + k)."""
        size = len(self.ids) + (0 if beside is None else len(beside))
        total = torch.zeros(size, size, dtype=torch.float64)
        for start in range(0, self.stop - self.start, TILE):
            tile = self[start:start + TILE].gather().double()
            if beside is not None:
                tile = torch.cat([tile, beside[:, start:start + TILE].double()])
            if origin is not None:
                tile = tile - origin[start:start + TILE].double()
            total += tile @ tile.T
        return total

    def distances(self, group, centres: torch.Tensor) -> torch.Tensor:
        """Return how far each row is from its group's centre, (n,): `group` (n,), centres (k, d). Each is worked out
        where the row lies."""
        found = self.crew.call(Order.DISTANCES, self.what, as_array(group, np.int64), centres.numpy())
        return torch.from_numpy(found)

    def mix(self, coefficients) -> Mixed:
        """Address to each participant its own sum over rows: coefficients (participants, n) give rows (d,), and
        (participants, m, n) give m rows (m, d) each; a coefficient of 1 alone fetches a row."""
        blocks = as_array(coefficients)
        shape = (self.stop - self.start,) if blocks.ndim == 2 else (blocks.shape[1], self.stop - self.start)
        return Mixed(self, blocks.reshape(len(blocks), -1, len(self.ids)), shape)

    @property
    def robust(self) -> bool:
        """Say whether `mean` and `mean_by` take the middle of what clients send; weights then do not count, or a client
        could claim any."""
        return self.source == UP and self.crew.group.config.server.aggregation != "mean"

    def _middle_by(self, group: np.ndarray, k: int) -> torch.Tensor:
        server = self.crew.group.config.server
        cuts = [robust.values_left_out(n, server.aggregation, server.trim) for n in np.bincount(group, minlength=k)]
        return torch.from_numpy(self.crew.call(Order.MIDDLE_BY, self.what, group, np.array(cuts))).to(self.dtype)

    @property
    def what(self) -> np.ndarray:
        """Return which rows these are, as orders name them."""
        return np.array([self.source, self.field, self.start, self.stop], np.int64)

    def _value(self, total, scale: float = 1.) -> torch.Tensor:
        return exact.read_sum(torch.as_tensor(total).cpu(), scale, self.dtype)


def as_array(values, dtype=np.float64) -> np.ndarray:
    return np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values, dtype)


def normalised(weight) -> np.ndarray:
    weight = as_array(weight)
    return weight / weight.sum()


def rows_of(crew: RankPool, source: int, like):
    """Return the Rows handle of every field of Up or Mine, given one client's as a template."""
    return type(like)(*(Rows(crew, source, i, 0, v.numel(), v.dtype) for i, v in enumerate(like)))
