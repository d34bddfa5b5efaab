"""One rank's part of the server's algebra on rows: columns of what its clients sent or keep, and sums over them.

A RowRef names rows as orders do; see comm/orders.py.
Legend: n hosted clients that have such a row, d columns (stop - start), k groups."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedmpi.clients.state_store import PIECE_BYTES, StateStore
from fedmpi.comm import exact
from fedmpi.comm.exact import NotFinite
from fedmpi.comm.orders import UP, RowRef
from fedmpi.config.schema import Config
from fedmpi.context import RankContext
from fedmpi.method import State


class RowHolder(Protocol):
    """Who holds the rows: see HostedClients."""
    config: Config
    context: RankContext
    device: torch.device
    store: StateStore
    clients: list[int]
    ups: dict[int, State]


class PartialSums:
    """Rows of one rank's clients, and this rank's part of sums over the rows of all."""

    def __init__(self, hosted: RowHolder):
        self.hosted = hosted

    @property
    def adds_exactly(self) -> bool:
        """Say whether sums are int64 fixed point, the same bits on any number of ranks; else they are float32."""
        return self.hosted.config.server.reduce == "exact"

    def list_holders(self, source: int) -> list[int]:
        """Return the hosted clients that have a row of a source, ascending."""
        return list(self.hosted.ups) if source == UP else self.hosted.clients

    def read_rows(self, ref: RowRef, dtype: torch.dtype = torch.float32) -> np.ndarray:
        """Return the rows of the hosted clients, (n, d), as numbers of a type.

        Raises:
            NotFinite: if a row holds a number that is not finite; `context.client` is its client."""
        clients = self.list_holders(ref.source)
        rows = list(self._rows(ref, clients))
        # one copy to the host, not one for each client
        if rows and self.hosted.device.type == "cuda":
            rows = list(torch.stack(rows).cpu())
        rows = [row.to(dtype) for row in rows]
        for r, row in enumerate(rows):
            if not row.isfinite().all():
                raise self._name_field(NotFinite(r, row), ref, clients)
        return (torch.stack(rows) if rows else torch.empty(0, ref.width, dtype=dtype)).numpy()

    def measure_distances(self, ref: RowRef, groups: np.ndarray, centres: np.ndarray) -> np.ndarray:
        """Return the distance of each hosted client's row from the centre of its group, (n,).

        Args:
            groups: the group of each row, (n,) int64
            centres: (k, d)"""
        rows, points = self._rows(ref, self.list_holders(ref.source)), torch.from_numpy(centres)
        points = points.to(self.hosted.device).double()
        found = [(row.double() - points[j]).norm() for row, j in zip(rows, groups.tolist(), strict=True)]
        return torch.stack(found).cpu().numpy() if found else np.empty(0)

    def sum_weighted(self, ref: RowRef, weights: np.ndarray, groups: np.ndarray | None = None,
                     k: int = 0) -> Tensor:
        """Return the hosted clients' part of a weighted sum of rows, (d,), or of one sum per group, (k, d).

        Args:
            weights: (n,) float64; a row with weight 0 is not looked at
            groups: the group of each row, (n,) int64; None: there is one sum

        Returns:
            int64 fixed point if sums are exact, else float32

        Raises:
            NotFinite: if a row holds a number of which there is no sum; `context.client` is its client."""
        shape = (ref.width,) if groups is None else (k, ref.width)
        used, holders = np.flatnonzero(weights), self.list_holders(ref.source)
        clients = [holders[i] for i in used]
        weights, groups = weights[used], None if groups is None else groups[used]
        if self.adds_exactly:
            total = torch.zeros(shape, dtype=torch.int64, device=self.hosted.device)
            for part in self._split(ref, len(clients)):
                try:
                    exact.accumulate(list(self._rows(ref, clients[part])), torch.from_numpy(weights[part]), total,
                                     None if groups is None else torch.from_numpy(groups[part]))
                except NotFinite as error:
                    raise self._name_field(error, ref, clients[part]) from None
            return total
        total = torch.zeros(shape, dtype=torch.float64, device=self.hosted.device)
        for r, row in enumerate(self._rows(ref, clients)):
            (total if groups is None else total[int(groups[r])]).add_(row.double(), alpha=float(weights[r]))
        if not total.isfinite().all():
            r, row = next((r, row) for r, row in enumerate(self._rows(ref, clients)) if not row.isfinite().all())
            raise self._name_field(NotFinite(r, row), ref, clients)
        return total.float()

    def _rows(self, ref: RowRef, clients: list[int]) -> Iterator[Tensor]:
        """Yield the row of each of some hosted clients, (d,)."""
        for client in clients:
            if ref.source == UP:
                yield self.hosted.ups[client][ref.field].reshape(-1)[ref.start:ref.stop]
            else:
                yield self.hosted.store.read_columns(client, ref.field, ref.start, ref.stop)

    def _split(self, ref: RowRef, n: int) -> Iterator[slice]:
        """Divide n rows into those that are added at once: all, or PIECE_BYTES if some are on the disk."""
        at_once, store = max(1, n), self.hosted.store
        if ref.source != UP and store.spills:
            at_once = max(1, PIECE_BYTES // max(1, ref.width * store.first[ref.field].element_size()))
        for begin in range(0, n, at_once):
            yield slice(begin, begin + at_once)

    def _name_field(self, error: NotFinite, ref: RowRef, clients: list[int]) -> NotFinite:
        """Return the same error with the field's name, and note the client as the one at work."""
        hosted = self.hosted
        hosted.context.client = client = clients[error.row]
        state = hosted.ups[client] if ref.source == UP else hosted.store.first
        return NotFinite(error.row, error.values, state._fields[ref.field])
