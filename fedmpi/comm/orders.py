"""Rank 0's orders to all ranks: a small fixed header, a framed payload of arrays, then one collective. No pickle.

Every rank performs an order in the same way (`RankPool.perform`): the local part on the clients it hosts, then the
collective. Rank 0 gives orders with `RankPool.call`; workers take them in `RankPool.serve` until STOP."""
from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch

from fedmpi.comm.gpu_staging import landing, outgoing
from fedmpi.comm.robust import middle_by
from fedmpi.comm.transport import Transport
from fedmpi.torch_compat import count_changes

DTYPES = [np.dtype(name) for name in ("uint8", "int32", "int64", "float32", "float64", "bool", "float16")]


class Order(IntEnum):
    STOP = 0         # exit code
    TRAIN = 1        # round, ids, ranks, judge, *news -> bad updates (n,) or nothing, see RankPool.train and .news
    SUM = 2          # what, weights                   -> (d,); `what` is (source, field, start, stop), see Rows
    SUM_BY = 3       # what, weights, groups, k        -> (k, d)
    GATHER = 4       # what                            -> (rows, d)
    JUDGE = 5        # round, *news                    -> (N, 3 or 4, 1 + measures), see evaluation.py, and TIMES
    DIGEST = 6       #                                 -> (N, 32) sha256 of each client's state
    TOUCHED = 7      #                                 -> (N,) which clients have a row of their own
    STATE = 8        # ids                             -> rows of every Mine field
    RESTORE = 9      # path as bytes, ids              -> nothing: ranks read their rows from the file
    TIMES = 10       #                                 -> (ranks, ...), see HostedClients.take_times, StepCounter.take
    ENGINE = 11      # name as bytes                   -> nothing: all ranks train with it from now on
    PROBE = 12       # *news                           -> (ranks, 2) seconds of both engines on a few clients
    NOTE = 13        # slot, what, ids, coefficients, shape -> nothing: each client of ids is given its mix of rows
    MOVE = 14        # ids, ranks                      -> nothing: these clients live at these ranks from now on
    DISMISS = 15     # bad                             -> nothing: these participants' updates are left out
    MIDDLE_BY = 16   # what, groups, cuts              -> (k, d), see comm/robust.py
    PROBE_LAYERS = 17       #                          -> (ranks, 2, layers) seconds of both ways of convolutions
    LAYERS = 18      # unfolded                        -> nothing: all ranks compute these layers so from now on
    DISTANCES = 19   # what, groups, centres           -> (rows,) of each row from its group's centre


NEWS = {Order.TRAIN: 5, Order.JUDGE: 2, Order.PROBE: 1}      # how many arrays come before the server's state


def frame(arrays) -> np.ndarray:
    """Pack arrays into one byte buffer that says their types and shapes."""
    arrays = [np.asarray(a) for a in arrays]
    head = [len(arrays)]
    for a in arrays:
        head += [DTYPES.index(a.dtype), a.ndim, *a.shape]
    head = np.array([len(head) + 1, *head], np.int64)
    sizes = [padded(a.nbytes) for a in arrays]
    buffer = np.empty(head.nbytes + sum(sizes), np.uint8)
    buffer[:head.nbytes] = head.view(np.uint8)
    at = head.nbytes
    for a, size in zip(arrays, sizes, strict=True):
        buffer[at:at + a.nbytes] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
        at += size
    return buffer


def unframe(buffer, first: int | None = None) -> list:
    """Return the arrays of a framed buffer as views of it.

    Of a buffer that is a tensor, those from `first` on are tensors where it lies; the others are copied to the host."""
    words = on_host(buffer[:8 * int(on_host(buffer[:8]).view(np.int64)[0])]).view(np.int64)
    at, cursor, arrays = words.nbytes, 2, []
    for i in range(int(words[1])):
        dtype, ndim = DTYPES[int(words[cursor])], int(words[cursor + 1])
        shape = tuple(int(s) for s in words[cursor + 2:cursor + 2 + ndim])
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        part = buffer[at:at + nbytes]
        stays = isinstance(part, torch.Tensor) and first is not None and i >= first
        part = part.view(getattr(torch, dtype.name)) if stays else on_host(part).view(dtype)
        arrays.append(part.reshape(shape))
        at, cursor = at + padded(nbytes), cursor + 2 + ndim
    return arrays


def on_host(part) -> np.ndarray:
    return part.cpu().numpy() if isinstance(part, torch.Tensor) else part


def padded(nbytes: int) -> int:
    return (nbytes + 7) // 8 * 8


HEADER = 8192        # bytes of an order that need no second broadcast
UP, MINE = 0, 1      # sources of rows: what participants sent; what every client keeps


class RankPool:
    """All ranks with the clients they host. `group` performs the local part of an order (see clients/hosted.py)."""

    def __init__(self, world: Transport, group, homes: np.ndarray, gpu_direct: bool = False):
        self.world, self.group = world, group
        self.homes = homes              # (N,) rank that hosts each client
        self.ids = np.empty(0, np.int64)      # participants of the round under way, ascending
        self.ranks = np.empty(0, np.int64)    # the rank that trains each of them
        self.told = []                        # the server's state as it was last sent, with versions (rank 0)
        self.asked = False                    # some rank was asked to stop (rank 0)
        self.gpu_direct = gpu_direct          # this rank's GPU memory is MPI's to read and write: see gpu_staging.py

    def train(self, when: int, ids: np.ndarray, judge: bool, shared, ranks: np.ndarray | None = None):
        """Let participants train (rank 0), each at home or at `ranks`; with `judge` they are judged right after.
        Return whose updates are there, (n,) bool: all, but for those that are bad where such are skipped."""
        ranks = self.homes[ids] if ranks is None else ranks
        bad = self.call(Order.TRAIN, np.int64(when), ids, ranks, np.bool_(judge), *self.news(shared))
        if bad is None or not bad.any():
            return np.ones(len(ids), bool)
        self.call(Order.DISMISS, bad > 0)
        return bad == 0

    def judge(self, when: int, shared) -> tuple[np.ndarray, np.ndarray]:
        """Return the table of all clients (see Evaluator.measure_clients), and what TIMES gives (rank 0)."""
        return self.call(Order.JUDGE, np.int64(when), *self.news(shared))

    def news(self, shared) -> list[np.ndarray]:
        """Return which fields of the server's state are not at the ranks yet, (fields,) bool, and these (rank 0).

        A field that is the same tensor as when it was last sent, unchanged, is not sent again."""
        now = [(value, count_changes(value)) for value in shared]
        fresh = [i for i, (value, version) in enumerate(now)
                 if not self.told or self.told[i][0] is not value or self.told[i][1] != version]
        self.told = now
        flags = np.zeros(len(now), bool)
        flags[fresh] = True
        return [flags, *(now[i][0].detach().cpu().numpy() for i in fresh)]

    def call(self, order: Order, *arrays):
        """Give an order (rank 0), take part in it, and return its result."""
        if self.world.size > 1:
            buffer, header = frame(arrays), np.zeros(HEADER, np.uint8)
            words, inside = header[:16].view(np.int64), header[16:16 + buffer.size]
            words[:] = order, buffer.size
            if inside.size == buffer.size:      # a small order is its header
                inside[:] = buffer
            self.world.broadcast_header(header)
            if inside.size < buffer.size:
                self.world.broadcast(buffer)
            arrays = unframe(buffer)
        return self.perform(order, [np.asarray(a) for a in arrays])

    def serve(self) -> int:
        """Take orders from rank 0 until it says STOP (workers); return the exit code that comes with it."""
        while True:
            header = np.empty(HEADER, np.uint8)
            self.world.broadcast_header(header)
            order, size = header[:16].view(np.int64).tolist()
            buffer, first = header[16:16 + size], NEWS.get(order)
            if buffer.size < size:
                direct = self.gpu_direct and first is not None
                buffer = self.world.broadcast(landing(size, self.group.device, direct))
            if order == Order.STOP:
                return int(unframe(buffer)[0])
            self.perform(Order(order), unframe(buffer, first))

    def perform(self, order: Order, arrays: list[np.ndarray]):
        self.world.order = int(order)
        return getattr(self, "_" + order.name.lower())(*arrays)

    def _stop(self, code):
        """Nothing to do but to return."""

    def _train(self, when, ids, ranks, judge, fresh, *arrays):
        self.ids, self.ranks = np.array(ids), np.array(ranks)
        self.group.receive_shared(fresh, arrays)
        self.group.train(int(when), self.ids, self.ids[self.ranks == self.world.rank], bool(judge))
        return self.world.reduce(self.group.bad_updates(self.ids)) if self.group.skips_bad_updates else None

    def _dismiss(self, bad):
        self.ids, self.ranks = self.ids[~bad], self.ranks[~bad]

    def _sum(self, what, weights):
        return self._added(self.group.sums.weighted_sum(what, weights[self._at(what) == self.world.rank]))

    def _sum_by(self, what, weights, groups, k):
        here = self._at(what) == self.world.rank
        return self._added(self.group.sums.weighted_sum(what, weights[here], groups[here], int(k)))

    def _added(self, total: torch.Tensor, home: int = 0):
        return self.world.reduce(outgoing(total, self.gpu_direct), home)

    def _gather(self, what):
        return self._in_order(self.group.sums.rows(what), self._at(what))

    def _distances(self, what, groups, centres):
        at = self._at(what)
        return self._in_order(self.group.sums.distances(what, groups[at == self.world.rank], centres), at)

    def _middle_by(self, what, groups, cuts):
        def rows(start, stop):
            return self.group.sums.rows(np.append(what[:2], what[2] + [start, stop]))
        return middle_by(self.world, rows, int(what[3] - what[2]), self._at(what), groups, cuts)

    def _at(self, what) -> np.ndarray:
        """Return the rank that holds each row of a source."""
        return self.ranks if what[0] == UP else self.homes

    def _note(self, slot, what, ids, coefficients, shape):
        here = self._at(what) == self.world.rank
        for client, block in zip(ids.tolist(), coefficients, strict=True):
            home, scales = self.homes[client], np.maximum(np.abs(block).sum(1), 1e-300)
            totals = self._added(torch.stack([self.group.sums.weighted_sum(what, weights[here] / scale)
                                              for weights, scale in zip(block, scales, strict=True)]), home)
            if home == self.world.rank:
                self.group.add_message(int(slot), client, totals, scales, tuple(shape))

    def _judge(self, when, fresh, *arrays):
        self.group.receive_shared(fresh, arrays)
        table = self.group.evaluator.measure_clients(int(when), len(self.homes))
        mine = self._spent()
        times = np.zeros((self.world.size, len(mine)))
        times[self.world.rank] = mine
        both = self.world.reduce(np.concatenate([table.ravel(), times.ravel()]))      # every rank fills its own rows
        if self.world.rank:
            return None
        return both[:table.size].reshape(table.shape), self._heard(both[table.size:].reshape(times.shape))

    def _digest(self):
        return self._in_order(self.group.digests(), self.homes)

    def _touched(self):
        return self._in_order(self.group.touched(), self.homes)

    def _state(self, ids):
        fields = self.group.states(ids[self.homes[ids] == self.world.rank])
        return {name: self._in_order(rows, self.homes[ids]) for name, rows in fields.items()}

    def _restore(self, path, ids):
        self.group.restore_states(path.tobytes().decode(), ids)

    def _move(self, ids, ranks):
        rank, homes = self.world.rank, self.homes.copy()
        state = frame([np.bool_(True), *(value.cpu().numpy() for value in self.group.store.first)])
        for client, new in zip(ids.tolist(), ranks.tolist(), strict=True):
            if new == homes[client]:
                continue
            if rank == homes[client]:
                self.world.send(frame(self.group.release_client(client)), new)
            elif rank == new:
                self.group.host_client(client, *unframe(self.world.recv(np.empty_like(state), int(homes[client]))))
        homes[ids] = ranks
        self.homes = homes
        self.world.barrier()      # rank 0's clock is to show how long it takes all

    def _times(self):
        every = self.world.gather(self._spent()[None], np.ones(self.world.size, np.int64))
        return None if every is None else self._heard(every)

    def _spent(self) -> np.ndarray:
        """Return this rank's times and its clients' steps, and whether it was asked to stop: a signal may reach any
        rank."""
        return np.concatenate([self.group.take_times(), self.group.counter.take(), [self.group.context.stop()]])

    def _heard(self, every: np.ndarray) -> np.ndarray:
        self.asked = self.asked or bool(every[:, -1].any())
        return every[:, :-1]

    def _engine(self, name):
        self.group.use_engine(name.tobytes().decode())

    def _probe(self, fresh, *arrays):
        self.group.receive_shared(fresh, arrays)
        return self.world.gather(self.group.time_engines()[None], np.ones(self.world.size, np.int64))

    def _probe_layers(self):
        return self.world.gather(self.group.time_convolutions()[None], np.ones(self.world.size, np.int64))

    def _layers(self, unfolded):
        self.group.use_convolutions(unfolded)

    def _in_order(self, rows: np.ndarray, ranks: np.ndarray):
        """Gather rows of ascending clients that lie at `ranks`, each rank's ascending too, in the clients' order."""
        gathered = self.world.gather(rows, np.bincount(ranks, minlength=self.world.size))
        if gathered is None:
            return None
        out = np.empty_like(gathered)
        out[np.argsort(ranks, kind="stable")] = gathered
        return out
