"""Rows: the handle that server code holds on what the participants of a round sent.

The data are one row per client, spread over the worker ranks; each verb is one order and one collective.
Legend: n participants, d length of a row, k clusters."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedmpi.comm import exact
from fedmpi.comm.orders import Crew, Order


@dataclass(frozen=True)
class Rows:
    """One `Up` field of all participants, (n, d). `rows[block]` is a slice of every row."""
    crew: Crew
    field: int
    start: int
    stop: int
    dtype: torch.dtype
    exact: bool = True

    def __getitem__(self, block: slice) -> Rows:
        start, stop, _ = block.indices(self.stop - self.start)
        return Rows(self.crew, self.field, self.start + start, self.start + stop, self.dtype, self.exact)

    def mean(self, weight=None) -> torch.Tensor:
        """Return the mean over participants (d,), weighted by `weight` (n,) where it is given."""
        n = len(self.crew.ids)
        return self.sum(normalised(np.ones(n) if weight is None else weight))

    def sum(self, weight=None) -> torch.Tensor:
        """Return sum_i weight_i row_i, (d,); weights are 1 where not given."""
        weights = np.ones(len(self.crew.ids)) if weight is None else as_array(weight)
        scale = max(np.abs(weights).sum(), 1e-300)      # exact sums want weights of at most 1 in all
        total = self.crew.call(Order.SUM, *self._what(), weights / scale)
        return self._value(total, scale)

    def mean_by(self, group, k: int, old: torch.Tensor, weight=None) -> torch.Tensor:
        """Return the mean of each of k groups (k, d), `group` (n,) saying who is in which; an empty one keeps `old`."""
        group = as_array(group, np.int64)
        weights = np.ones(len(group)) if weight is None else as_array(weight)
        totals = np.bincount(group, weights, minlength=k)
        shares = weights / np.where(totals > 0, totals, 1)[group]
        total = self.crew.call(Order.SUM_BY, *self._what(), np.int64(k), shares, group)
        filled = torch.from_numpy(totals > 0)[:, None]
        return torch.where(filled, self._value(total), old)

    def gather(self) -> torch.Tensor:
        """Return every participant's row (n, d): for heads, low-rank images and small vectors."""
        rows = torch.from_numpy(self.crew.call(Order.GATHER, *self._what()))
        if not rows.isfinite().all():
            self._refuse(rows)
        return rows.to(self.dtype)

    def _refuse(self, rows: torch.Tensor):
        """Name the first client whose row cannot be used."""
        r = int((~rows.isfinite()).any(1).nonzero()[0])
        self.crew.group.at = int(self.crew.ids[r])
        raise exact.NotFinite(r, rows[r])

    def _what(self):
        return np.int64(self.field), np.int64(self.start), np.int64(self.stop)

    def _value(self, total: np.ndarray, scale: float = 1.) -> torch.Tensor:
        total = torch.from_numpy(total)
        return ((exact.value(total) if self.exact else total) * scale).to(self.dtype)


def as_array(values, dtype=np.float64) -> np.ndarray:
    return np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values, dtype)


def normalised(weight) -> np.ndarray:
    weight = as_array(weight)
    return weight / weight.sum()
