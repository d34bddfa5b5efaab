"""Rank 0 gives orders to all ranks and takes part in them; workers take orders until the last one.

An order is a small fixed header, and if the header cannot hold it a payload (frame.py); the order's collectives follow.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from fedmpi.comm.frame import pack_frame, unpack_frame
from fedmpi.comm.gpu_staging import allocate_bytes
from fedmpi.comm.hosted_interface import Hosted
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.comm.orders import ORDERS, UP, Order
from fedmpi.comm.rank_reports import RankReports
from fedmpi.comm.robust import RobustMean
from fedmpi.comm.transport import Transport
from fedmpi.server_only import select_sent
from fedmpi.torch_compat import count_changes

# Orders up to this size, with the 16 bytes of their number and length, need no second broadcast.
HEADER_BYTES = 8192
# Any: each order has a result of its own, which OrderPerformer describes.
OrderResult: TypeAlias = Any


class RankPool:
    """All ranks, seen from one of them: rank 0 calls `train`, `evaluate` and `call`, and each worker calls `serve`.

    Args:
        world: the ranks.
        hosted: the clients that this rank hosts.
        homes: the rank that hosts each client, (N,).
        gpu_direct: MPI reads and writes this rank's GPU memory (see gpu_staging.py).
        robust: what replaces means over participants; None: nothing does."""

    def __init__(self, world: Transport, hosted: Hosted, homes: np.ndarray, gpu_direct: bool = False,
                 robust: RobustMean | None = None):
        self.world, self.hosted, self.robust = world, hosted, robust
        self.performer = OrderPerformer(world, hosted, homes, gpu_direct)
        # the server's state as rank 0 sent it last: tensors with the versions that they had
        self._last_sent: list[tuple[Tensor, int]] = []
        # bytes that `deliver` has sent so far, also to clients of this rank
        self.delivered_bytes = 0

    @property
    def homes(self) -> np.ndarray:
        """Return the rank that hosts each client, (N,)."""
        return self.performer.homes

    @property
    def ids(self) -> np.ndarray:
        """Return the participants of the round under way, ascending, (n,)."""
        return self.performer.ids

    def find_clients(self, source: int) -> np.ndarray:
        """Return the client of each row of a source, ascending."""
        return self.ids if source == UP else np.arange(len(self.homes))

    @property
    def stop_requested(self) -> bool:
        """Say whether some rank was asked to stop, as far as rank 0 knows."""
        return self.performer.stop_requested

    def train(self, round: int, ids: np.ndarray, evaluates: bool, shared: tuple[Tensor, ...],
              ranks: np.ndarray | None = None) -> np.ndarray:
        """Let participants train; return whose updates arrived, (n,) bool: all, unless bad ones are skipped.

        Args:
            round: number of the round.
            ids: the participants, ascending, (n,).
            evaluates: measure them right after their training.
            shared: the server's state.
            ranks: the rank that trains each of them, (n,); default: its home.
        Raises:
            GivenUp: also in a later order, if rank 0 was asked to stop and has waited too long for their training."""
        ranks = self.homes[ids] if ranks is None else ranks
        bad = self.call(OrderPerformer.train, np.int64(round), ids, ranks, np.bool_(evaluates),
                        *self.list_changed_fields(shared))
        if bad is None or not bad.any():
            return np.ones(len(ids), bool)
        self.call(OrderPerformer.dismiss, bad > 0)
        return bad == 0

    def evaluate(self, round: int, shared: tuple[Tensor, ...]) -> tuple[np.ndarray, RankReports]:
        """Return the measures of all clients (see Evaluator.measure_clients), and the ranks' reports."""
        return self.call(OrderPerformer.evaluate, np.int64(round), *self.list_changed_fields(shared))

    def deliver(self, slot: int, ids: np.ndarray, rows: Tensor) -> None:
        """Send each client of `ids` its own row of what the server made, as one field of its message.

        The rows go one by one to the ranks that host the clients, so no rank holds more than its own clients' rows.

        Args:
            slot: index of the field in the method's message.
            ids: the clients (n,).
            rows: (n, ...), on the CPU."""
        self.performer.outgoing = rows.detach().contiguous().numpy().reshape(len(ids), -1).view(np.uint8)
        self.delivered_bytes += self.performer.outgoing.nbytes
        self.call(OrderPerformer.deliver, np.int64(slot), ids, np.int64(self.performer.outgoing.shape[1]))
        self.performer.outgoing = None

    def measure_losses(self, round: int, ids: np.ndarray, shared: tuple[Tensor, ...]) -> np.ndarray:
        """Return the mean loss of clients `ids` (n,), ascending, on their training samples before this round, (n,).
        """
        losses: np.ndarray = self.call(OrderPerformer.measure_losses, np.int64(round), ids,
                                       *self.list_changed_fields(shared))
        return losses

    def list_changed_fields(self, shared: tuple[Tensor, ...]) -> list[np.ndarray]:
        """Return which fields of the server's state changed since they were sent, (fields,) bool, and these fields.
        Those that are SERVER_ONLY are left out.

        An unmodified field is not sent again. PyTorch counts changes itself, so fields must be modified by PyTorch's
        operations, never through .numpy()."""
        now = [(value, count_changes(value)) for value in select_sent(shared)]
        changed = [i for i, (value, version) in enumerate(now)
                   if not self._last_sent or self._last_sent[i][0] is not value or self._last_sent[i][1] != version]
        self._last_sent = now
        flags = np.zeros(len(now), bool)
        flags[changed] = True
        return [flags, *(now[i][0].detach().cpu().numpy() for i in changed)]

    def call(self, order: Order, *arrays: np.ndarray) -> OrderResult:
        """Give an order (rank 0), take part in it, and return its result."""
        if self.world.size > 1:
            buffer, header = pack_frame(arrays), np.zeros(HEADER_BYTES, np.uint8)
            words, inside = header[:16].view(np.int64), header[16:16 + buffer.size]
            words[:] = order.number, buffer.size
            # A small order fits into its header.
            if inside.size == buffer.size:
                inside[:] = buffer
            self.world.broadcast_header(header)
            if inside.size < buffer.size:
                self.world.broadcast(buffer)
            arrays = tuple(unpack_frame(buffer))
        if order is OrderPerformer.train:
            # A signal may reach rank 0 alone, which waits for the workers' clients at the next collective, now that all
            # have the order.
            self.world.while_waiting = self.hosted.check_grace
        return self._perform(order, [np.asarray(a) for a in arrays])

    def serve(self) -> int:
        """Take orders from rank 0 until it says stop (workers); return the exit code that comes with it."""
        while True:
            header = np.empty(HEADER_BYTES, np.uint8)
            self.world.broadcast_header(header)
            number, size = header[:16].view(np.int64).tolist()
            order, buffer = ORDERS[number], header[16:16 + size]
            if buffer.size < size:
                direct = self.performer.gpu_direct and order.first_state is not None
                buffer = self.world.broadcast(allocate_bytes(size, self.hosted.device, direct))
            if order is OrderPerformer.stop:
                return int(unpack_frame(buffer)[0])
            self._perform(order, unpack_frame(buffer, order.first_state))

    def _perform(self, order: Order, arrays: Sequence[np.ndarray | Tensor]) -> OrderResult:
        self.world.order = order.number
        return order.perform(self.performer, *arrays)
