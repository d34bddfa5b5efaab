"""What every rank does for rank 0's orders: its part on the clients that it hosts, then one collective."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedmpi.comm.frame import pack_frame, unpack_frame
from fedmpi.comm.gpu_staging import stage_for_mpi
from fedmpi.comm.hosted_interface import Hosted
from fedmpi.comm.memory_use import measure_peak_memory
from fedmpi.comm.orders import UP, Order, RowRef, performs
from fedmpi.comm.robust import trim_mean_by
from fedmpi.comm.transport import Transport

# Sums of weights are at least this, so that dividing by one of no weights gives 0.
TINY = 1e-300


class OrderPerformer:
    """This rank's part of every order; it knows where each row lies.

    Args:
        world: the ranks.
        hosted: the clients that this rank hosts.
        homes: the rank that hosts each client, (N,).
        gpu_direct: MPI reads and writes this rank's GPU memory (see gpu_staging.py)."""

    def __init__(self, world: Transport, hosted: Hosted, homes: np.ndarray, gpu_direct: bool = False):
        self.world, self.hosted, self.homes, self.gpu_direct = world, hosted, homes, gpu_direct
        # participants of the round under way, ascending, and the rank that trains each of them, (n,)
        self.ids = np.empty(0, np.int64)
        self.ranks = np.empty(0, np.int64)
        # at rank 0, while it is delivered: what the server made for single clients, (n, bytes)
        self.outgoing: np.ndarray | None = None
        # whether some rank was asked to stop (known at rank 0)
        self.stop_requested = False
        # MiB that each rank held at most, on its host and on its GPU, (ranks, 2); known at rank 0
        self.peak_memory = np.zeros((world.size, 2))

    @performs(Order.STOP)
    def stop(self, code: np.ndarray) -> None:
        """Do nothing: workers leave their loop before, and rank 0 goes on by itself."""

    @performs(Order.TRAIN, first_state=5)
    def train(self, when: np.ndarray, ids: np.ndarray, ranks: np.ndarray, judge: np.ndarray, changed: np.ndarray,
              *state: np.ndarray | Tensor) -> np.ndarray | None:
        """Train the participants that this rank trains; return whose updates are bad."""
        self.ids, self.ranks = np.array(ids), np.array(ranks)
        self.hosted.receive_shared(changed, state)
        self.hosted.train(int(when), self.ids, self.ids[self.ranks == self.world.rank], bool(judge))
        return self.world.reduce(self.hosted.bad_updates(self.ids)) if self.hosted.skips_bad_updates else None

    @performs(Order.DISMISS)
    def dismiss(self, bad: np.ndarray) -> None:
        """Forget the participants whose updates are bad."""
        self.ids, self.ranks = self.ids[~bad], self.ranks[~bad]

    @performs(Order.SUM)
    def sum(self, ref: np.ndarray, weights: np.ndarray) -> np.ndarray | Tensor:
        """Return the weighted sum of all rows."""
        rows = RowRef.from_array(ref)
        return self._reduce(self.hosted.sums.weighted_sum(rows, weights[self._is_here(rows)]))

    @performs(Order.SUM_BY)
    def sum_by(self, ref: np.ndarray, weights: np.ndarray, groups: np.ndarray, k: np.ndarray) -> np.ndarray | Tensor:
        """Return the weighted sum of each group's rows."""
        rows = RowRef.from_array(ref)
        here = self._is_here(rows)
        return self._reduce(self.hosted.sums.weighted_sum(rows, weights[here], groups[here], int(k)))

    @performs(Order.GATHER)
    def gather(self, ref: np.ndarray) -> np.ndarray | None:
        """Return all rows."""
        rows = RowRef.from_array(ref)
        return self._gather_in_order(self.hosted.sums.rows(rows), self._ranks_of(rows))

    @performs(Order.DISTANCES)
    def distances(self, ref: np.ndarray, groups: np.ndarray, centres: np.ndarray) -> np.ndarray | None:
        """Return the distance of each row from its group's centre."""
        rows = RowRef.from_array(ref)
        here = self._is_here(rows)
        return self._gather_in_order(self.hosted.sums.distances(rows, groups[here], centres), self._ranks_of(rows))

    @performs(Order.MIDDLE_BY)
    def middle_by(self, ref: np.ndarray, groups: np.ndarray, cuts: np.ndarray) -> np.ndarray | None:
        """Return the trimmed mean of each group's rows."""
        rows = RowRef.from_array(ref)

        def columns(start: int, stop: int) -> np.ndarray:
            return self.hosted.sums.rows(rows.columns(start, stop))
        return trim_mean_by(self.world, columns, rows.width, self._ranks_of(rows), groups, cuts)

    @performs(Order.MESSAGE)
    def send_message(self, slot: np.ndarray, ref: np.ndarray, ids: np.ndarray, coefficients: np.ndarray,
                     shape: np.ndarray) -> None:
        """Send each client of `ids` its mix of rows as one field of its message."""
        rows = RowRef.from_array(ref)
        here = self._is_here(rows)
        for client, block in zip(ids.tolist(), coefficients, strict=True):
            home, scales = self.homes[client], np.maximum(np.abs(block).sum(1), TINY)
            parts = [self.hosted.sums.weighted_sum(rows, weights[here] / scale)
                     for weights, scale in zip(block, scales, strict=True)]
            totals = self._reduce(torch.stack(parts), home)
            if home == self.world.rank:
                self.hosted.add_message(int(slot), client, totals, scales, tuple(shape))

    @performs(Order.DELIVER)
    def deliver(self, slot: np.ndarray, ids: np.ndarray, size: np.ndarray) -> None:
        """Pass each client of `ids` its row, of so many bytes, in turn from rank 0 to the rank that hosts it."""
        for position, (client, home) in enumerate(zip(ids.tolist(), self.homes[ids].tolist(), strict=True)):
            # Only rank 0 has rows to send.
            if self.outgoing is not None:
                row = self.outgoing[position]
                if home:
                    self.world.send(row, home)
                    self.world.sent += row.nbytes
            elif self.world.rank == home:
                row = self.world.recv(np.empty(int(size), np.uint8), 0)
                self.world.received += row.nbytes
            if self.world.rank == home:
                self.hosted.take_delivery(int(slot), client, row)

    @performs(Order.JUDGE, first_state=2)
    def judge(self, when: np.ndarray, changed: np.ndarray,
              *state: np.ndarray | Tensor) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the measures of all clients, and the times of all ranks."""
        self.hosted.receive_shared(changed, state)
        table = self.hosted.evaluator.measure_clients(int(when), len(self.homes))
        own = self._own_times()
        times = np.zeros((self.world.size, len(own)))
        times[self.world.rank] = own
        # Every rank fills its own rows, so one sum brings both tables together.
        both = self.world.reduce(np.concatenate([table.ravel(), times.ravel()]))
        if self.world.rank:
            return None
        return both[:table.size].reshape(table.shape), self._note_stop(both[table.size:].reshape(times.shape))

    @performs(Order.PORTIONS)
    def set_portions(self, ids: np.ndarray, portions: np.ndarray) -> None:
        """Tell clients which part of their steps they make in the next round, wherever they train."""
        self.hosted.set_portions(ids, portions)

    @performs(Order.LOSSES, first_state=3)
    def measure_losses(self, when: np.ndarray, ids: np.ndarray, changed: np.ndarray,
                       *state: np.ndarray | Tensor) -> np.ndarray | None:
        """Return the mean loss of some clients on their training samples."""
        self.hosted.receive_shared(changed, state)
        homes = self.homes[ids]
        here = ids[homes == self.world.rank].tolist()
        return self._gather_in_order(self.hosted.evaluator.measure_training_losses(int(when), here), homes)

    @performs(Order.TIMES)
    def times(self) -> np.ndarray | None:
        """Return the times of all ranks."""
        every = self._gather_row(self._own_times())
        return None if every is None else self._note_stop(every)

    def _own_times(self) -> np.ndarray:
        """Return this rank's times, its clients' steps, its peak memory, and whether this worker was asked to stop.

        A signal may reach any rank. Rank 0 looks for itself at the end of every round."""
        hosted = self.hosted
        asked = self.world.rank > 0 and hosted.context.stop()
        return np.concatenate([hosted.take_times(), hosted.counter.take(), measure_peak_memory(hosted.device), [asked]])

    def _note_stop(self, every: np.ndarray) -> np.ndarray:
        """Note the last columns of all ranks' times, which are no times; return the others."""
        self.peak_memory = every[:, -3:-1]
        self.stop_requested = self.stop_requested or bool(every[:, -1].any())
        return every[:, :-3]

    @performs(Order.DIGEST)
    def digest(self) -> np.ndarray | None:
        """Return the digest of each client's state."""
        return self._gather_in_order(self.hosted.digests(), self.homes)

    @performs(Order.TOUCHED)
    def find_touched(self) -> np.ndarray | None:
        """Return which clients have a state of their own."""
        return self._gather_in_order(self.hosted.find_touched(), self.homes)

    @performs(Order.STATE)
    def states(self, ids: np.ndarray) -> dict[str, np.ndarray | None]:
        """Return the states of some clients by field."""
        homes = self.homes[ids]
        fields = self.hosted.states(ids[homes == self.world.rank])
        return {name: self._gather_in_order(rows, homes) for name, rows in fields.items()}

    @performs(Order.RESTORE)
    def restore(self, path: np.ndarray, ids: np.ndarray) -> None:
        """Read the states of this rank's clients from a checkpoint that holds those of `ids`."""
        self.hosted.restore_states(path.tobytes().decode(), ids)

    @performs(Order.MOVE)
    def move(self, ids: np.ndarray, ranks: np.ndarray) -> None:
        """Move clients, each with its state, to other ranks."""
        rank, homes = self.world.rank, self.homes.copy()
        state = pack_frame([np.bool_(True), *(value.cpu().numpy() for value in self.hosted.store.first)])
        for client, new in zip(ids.tolist(), ranks.tolist(), strict=True):
            if new == homes[client]:
                continue
            if rank == homes[client]:
                self.world.send(pack_frame(self.hosted.release_client(client)), new)
            elif rank == new:
                received = self.world.recv(np.empty_like(state), int(homes[client]))
                self.hosted.host_client(client, *unpack_frame(received))
        homes[ids] = ranks
        self.homes = homes
        # Rank 0's clock is to show how long all ranks take.
        self.world.barrier()

    @performs(Order.ENGINE)
    def use_engine(self, name: np.ndarray) -> None:
        """Train with another engine from now on."""
        self.hosted.use_engine(name.tobytes().decode())

    @performs(Order.PROBE, first_state=1)
    def time_engines(self, changed: np.ndarray, *state: np.ndarray | Tensor) -> np.ndarray | None:
        """Return the seconds of both engines at each rank."""
        self.hosted.receive_shared(changed, state)
        return self._gather_row(self.hosted.time_engines())

    @performs(Order.PROBE_LAYERS)
    def time_convolutions(self) -> np.ndarray | None:
        """Return the seconds of both ways of convolutions at each rank."""
        return self._gather_row(self.hosted.time_convolutions())

    @performs(Order.LAYERS)
    def use_convolutions(self, unfolded: np.ndarray) -> None:
        """Compute convolutions in these ways from now on."""
        self.hosted.use_convolutions(unfolded)

    def _ranks_of(self, rows: RowRef) -> np.ndarray:
        """Return the rank that holds each row, (n,)."""
        return self.ranks if rows.source == UP else self.homes

    def _is_here(self, rows: RowRef) -> np.ndarray:
        """Return which rows this rank holds, (n,) bool."""
        return self._ranks_of(rows) == self.world.rank

    def _reduce(self, total: Tensor, root: int = 0) -> np.ndarray | Tensor:
        return self.world.reduce(stage_for_mpi(total, self.gpu_direct), root)

    def _gather_row(self, row: np.ndarray) -> np.ndarray | None:
        """Return one row of each rank, (ranks, ...), at rank 0."""
        return self.world.gather(row[None], np.ones(self.world.size, np.int64))

    def _gather_in_order(self, rows: np.ndarray, ranks: Sequence[int]) -> np.ndarray | None:
        """Gather rows in the order of all clients.

        Args:
            rows: this rank's rows, ascending by client; `ranks` (n,) says which rank holds each row of all."""
        gathered = self.world.gather(rows, np.bincount(ranks, minlength=self.world.size))
        if gathered is None:
            return None
        out = np.empty_like(gathered)
        out[np.argsort(ranks, kind="stable")] = gathered
        return out
