"""All orders of rank 0, with what every rank does for each: its part on the clients that it hosts, then mostly one
collective.

Results are those that rank 0 receives. Arguments that several orders have:
    ref: the rows, a RowRef as an array (orders.py).
    round: the round.
    ids: clients, ascending.
    changed, *state: the server's state: which of its fields changed, (fields,) bool, and these fields.
Legend: N clients, n rows or participants, d length of a row, k groups."""
from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedmpi.comm.frame import pack_frame, unpack_frame
from fedmpi.comm.gpu_staging import stage_for_mpi
from fedmpi.comm.hosted_interface import Hosted
from fedmpi.comm.memory_use import measure_peak_memory
from fedmpi.comm.orders import UP, RowRef, order
from fedmpi.comm.rank_reports import RankReports
from fedmpi.comm.robust import trim_mean_by
from fedmpi.comm.transport import Transport

# Sums of weights are at least this, so that dividing by one of no weights gives 0.
MIN_WEIGHT_SUM = 1e-300


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

    @order()
    def stop(self, code: np.ndarray) -> None:
        """End the run with an exit code: workers leave their loop before, and rank 0 goes on by itself."""

    @order(first_state=5)
    def train(self, round: np.ndarray, ids: np.ndarray, ranks: np.ndarray, evaluates: np.ndarray, changed: np.ndarray,
              *state: np.ndarray | Tensor) -> np.ndarray | None:
        """Train participants.

        Args:
            ids: the participants, (n,).
            ranks: the rank that trains each, (n,).
            evaluates: whether clients are measured after this round.

        Returns: 1 for a bad update, (n,); None if bad updates end the run."""
        self.ids, self.ranks = np.array(ids), np.array(ranks)
        self.hosted.receive_shared(changed, state)
        self.hosted.train(int(round), self.ids, self.ids[self.ranks == self.world.rank], bool(evaluates))
        return self.world.reduce(self.hosted.find_bad_updates(self.ids)) if self.hosted.skips_bad_updates else None

    @order()
    def dismiss(self, bad: np.ndarray) -> None:
        """Leave out the updates of the participants that are `bad`, (n,) bool."""
        self.ids, self.ranks = self.ids[~bad], self.ranks[~bad]

    @order()
    def sum_rows(self, ref: np.ndarray, weights: np.ndarray) -> np.ndarray | Tensor:
        """Return the weighted sum of all rows, (d,), for weights (n,)."""
        rows = RowRef.from_array(ref)
        return self._reduce(self.hosted.sums.sum_weighted(rows, weights[self._is_here(rows)]))

    @order()
    def sum_groups(self, ref: np.ndarray, weights: np.ndarray, groups: np.ndarray,
                   k: np.ndarray) -> np.ndarray | Tensor:
        """Return the weighted sum of each group's rows, (k, d), for weights and groups (n,)."""
        rows = RowRef.from_array(ref)
        here = self._is_here(rows)
        return self._reduce(self.hosted.sums.sum_weighted(rows, weights[here], groups[here], int(k)))

    @order()
    def gather_rows(self, ref: np.ndarray, like: np.ndarray) -> np.ndarray | None:
        """Return all rows, (n, d), as numbers of the type of `like`, an empty array."""
        rows = RowRef.from_array(ref)
        dtype = torch.from_numpy(like).dtype
        return self._gather_in_order(self.hosted.sums.read_rows(rows, dtype), self._ranks_of(rows))

    @order()
    def measure_distances(self, ref: np.ndarray, groups: np.ndarray, centres: np.ndarray) -> np.ndarray | None:
        """Return the distance of each row from its group's centre, (n,), for groups (n,) and centres (k, d)."""
        rows = RowRef.from_array(ref)
        here = self._is_here(rows)
        distances = self.hosted.sums.measure_distances(rows, groups[here], centres)
        return self._gather_in_order(distances, self._ranks_of(rows))

    @order()
    def trim_groups(self, ref: np.ndarray, groups: np.ndarray, cuts: np.ndarray) -> np.ndarray | None:
        """Return the trimmed mean of each group's rows, (k, d), for groups (n,) and cuts (k,): see robust.py."""
        rows = RowRef.from_array(ref)

        def columns(start: int, stop: int) -> np.ndarray:
            return self.hosted.sums.read_rows(rows.columns(start, stop))
        return trim_mean_by(self.world, columns, rows.width, self._ranks_of(rows), groups, cuts)

    @order()
    def send_mixed_rows(self, slot: np.ndarray, ref: np.ndarray, ids: np.ndarray, coefficients: np.ndarray,
                        shape: np.ndarray) -> None:
        """Send each client of `ids` its mix of rows as one field of its message.

        Args:
            slot: the field.
            coefficients: (ids, m, n), the weights of the m sums that a client receives.
            shape: of what a client receives."""
        rows = RowRef.from_array(ref)
        here = self._is_here(rows)
        for client, block in zip(ids.tolist(), coefficients, strict=True):
            home, scales = self.homes[client], np.maximum(np.abs(block).sum(1), MIN_WEIGHT_SUM)
            parts = [self.hosted.sums.sum_weighted(rows, weights[here] / scale)
                     for weights, scale in zip(block, scales, strict=True)]
            totals = self._reduce(torch.stack(parts), home)
            if home == self.world.rank:
                self.hosted.add_mixed_field(int(slot), client, totals, scales, tuple(shape))

    @order()
    def deliver(self, slot: np.ndarray, ids: np.ndarray, size: np.ndarray) -> None:
        """Pass each client of `ids` its row, of `size` bytes, in turn from rank 0 to the rank that hosts it."""
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
                self.hosted.add_server_field(int(slot), client, row)

    @order(first_state=2)
    def evaluate(self, round: np.ndarray, changed: np.ndarray,
              *state: np.ndarray | Tensor) -> tuple[np.ndarray, RankReports] | None:
        """Return the measures of all clients and of the m new ones, (N + m, 3 or 4, 1 + measures), and what
        `gather_reports` returns."""
        self.hosted.receive_shared(changed, state)
        table = self.hosted.evaluator.measure_clients(int(round), len(self.homes))
        own = self._make_report()
        reports = np.zeros((self.world.size, len(own)))
        reports[self.world.rank] = own
        # Every rank fills its own rows, so one sum brings both tables together.
        both = self.world.reduce(np.concatenate([table.ravel(), reports.ravel()]))
        if self.world.rank:
            return None
        return both[:table.size].reshape(table.shape), self._read_reports(both[table.size:].reshape(reports.shape))

    @order()
    def set_portions(self, ids: np.ndarray, portions: np.ndarray) -> None:
        """Tell clients which part of their steps they make in the next round, wherever they train.

        Args:
            portions: (ids, 2): a client makes the first number of every so many steps as the second says."""
        self.hosted.set_portions(ids, portions)

    @order(first_state=3)
    def measure_losses(self, round: np.ndarray, ids: np.ndarray, changed: np.ndarray,
                       *state: np.ndarray | Tensor) -> np.ndarray | None:
        """Return the mean loss of each client of `ids` on its training samples."""
        self.hosted.receive_shared(changed, state)
        homes = self.homes[ids]
        here = ids[homes == self.world.rank].tolist()
        return self._gather_in_order(self.hosted.evaluator.measure_training_losses(int(round), here), homes)

    @order()
    def gather_reports(self) -> RankReports | None:
        """Return the reports of all ranks, of what happened since the last ones."""
        rows = self._gather_row(self._make_report())
        return None if rows is None else self._read_reports(rows)

    def _make_report(self) -> np.ndarray:
        """Return this rank's report as a row.

        A signal may reach any rank. Rank 0 looks for itself at the end of every round."""
        hosted = self.hosted
        asked = self.world.rank > 0 and hosted.context.stop()
        return RankReports.to_row(*hosted.take_seconds(), hosted.trains_on_gpu, asked,
                                  measure_peak_memory(hosted.device), hosted.counter.take())

    def _read_reports(self, rows: np.ndarray) -> RankReports:
        """Return the reports of all ranks, and remember if some rank was asked to stop."""
        reports = RankReports.from_rows(rows)
        self.stop_requested = self.stop_requested or bool(reports.stop_requested.any())
        return reports

    @order()
    def gather_digests(self) -> np.ndarray | None:
        """Return the sha256 of each client's state, (N, 32)."""
        return self._gather_in_order(self.hosted.compute_digests(), self.homes)

    @order()
    def gather_touched(self) -> np.ndarray | None:
        """Return which clients have a state of their own, (N,)."""
        return self._gather_in_order(self.hosted.find_touched(), self.homes)

    @order()
    def gather_states(self, ids: np.ndarray) -> dict[str, np.ndarray | None]:
        """Return the states of the clients of `ids`: rows by the name of the `Mine` field."""
        homes = self.homes[ids]
        fields = self.hosted.collect_states(ids[homes == self.world.rank])
        return {name: self._gather_in_order(rows, homes) for name, rows in fields.items()}

    @order()
    def restore(self, path: np.ndarray, ids: np.ndarray) -> None:
        """Read the states of this rank's clients from a checkpoint at `path`, in bytes, that holds those of `ids`."""
        self.hosted.restore_states(os.fsdecode(path.tobytes()), ids)

    @order()
    def move(self, ids: np.ndarray, ranks: np.ndarray) -> None:
        """Move the clients of `ids`, each with its state, to these ranks, (ids,)."""
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

    @order()
    def use_engine(self, name: np.ndarray) -> None:
        """Train with the engine of this name, in bytes, from now on."""
        self.hosted.use_engine(name.tobytes().decode())

    @order(first_state=1)
    def time_engines(self, changed: np.ndarray, *state: np.ndarray | Tensor) -> np.ndarray | None:
        """Return the seconds that both engines take for a few clients at each rank, (ranks, 2)."""
        self.hosted.receive_shared(changed, state)
        return self._gather_row(self.hosted.time_engines())

    @order()
    def time_convolutions(self) -> np.ndarray | None:
        """Return the seconds of both ways to compute each convolution at each rank, (ranks, 2, layers)."""
        return self._gather_row(self.hosted.time_convolutions())

    @order()
    def use_convolutions(self, unfolded: np.ndarray) -> None:
        """Compute the convolutions that are `unfolded`, (layers,) bool, as products of patches from now on."""
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
