"""Rank 0's orders to all ranks: a small fixed header, a framed payload of arrays, then one collective. No pickle.

Every rank performs an order in the same way (`Crew.perform`): the local part on the clients it hosts, then the
collective. Rank 0 gives orders with `Crew.call`; workers take them in `Crew.serve` until STOP."""
from __future__ import annotations

from enum import IntEnum

import numpy as np

from fedmpi.comm.world import Solo

DTYPES = [np.dtype(name) for name in ("uint8", "int32", "int64", "float32", "float64", "bool", "float16")]


class Order(IntEnum):
    STOP = 0         # exit code
    TRAIN = 1        # round, ids, ranks, judge, *shared -> nothing: Up stays at the workers
    SUM = 2          # what, weights                   -> (d,); `what` is (source, field, start, stop), see Rows
    SUM_BY = 3       # what, weights, groups, k        -> (k, d)
    GATHER = 4       # what                            -> (rows, d)
    JUDGE = 5        # round, *shared                  -> (N, 3, 1 + measures), see Group.judge
    DIGEST = 6       #                                 -> (N, 32) sha256 of each client's state
    TOUCHED = 7      #                                 -> (N,) which clients have a row of their own
    STATE = 8        # ids                             -> rows of every Mine field
    RESTORE = 9      # path as bytes, ids              -> nothing: ranks read their rows from the file
    TIMES = 10       #                                 -> (ranks, phases + 1), see Group.times
    ENGINE = 11      # name as bytes                   -> nothing: all ranks train with it from now on
    PROBE = 12       # *shared                         -> (ranks, 2) seconds of both engines on a few clients
    NOTE = 13        # slot, what, ids, coefficients, shape -> nothing: each client of ids is given its mix of rows


def frame(arrays) -> np.ndarray:
    """Pack arrays into one byte buffer that says their types and shapes."""
    arrays = [np.asarray(a) for a in arrays]
    head = [len(arrays)]
    for a in arrays:
        head += [DTYPES.index(a.dtype), a.ndim, *a.shape]
    head = np.array([len(head) + 1, *head], np.int64)
    sizes = [padded(a.nbytes) for a in arrays]
    buffer = np.zeros(head.nbytes + sum(sizes), np.uint8)
    buffer[:head.nbytes] = head.view(np.uint8)
    at = head.nbytes
    for a, size in zip(arrays, sizes, strict=True):
        buffer[at:at + a.nbytes] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
        at += size
    return buffer


def unframe(buffer: np.ndarray) -> list[np.ndarray]:
    """Return the arrays of a framed buffer as views of it."""
    words = buffer[:buffer.size // 8 * 8].view(np.int64)
    at, cursor, arrays = 8 * int(words[0]), 2, []
    for _ in range(int(words[1])):
        dtype, ndim = DTYPES[int(words[cursor])], int(words[cursor + 1])
        shape = tuple(int(s) for s in words[cursor + 2:cursor + 2 + ndim])
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays.append(buffer[at:at + nbytes].view(dtype).reshape(shape))
        at, cursor = at + padded(nbytes), cursor + 2 + ndim
    return arrays


def padded(nbytes: int) -> int:
    return (nbytes + 7) // 8 * 8


UP, MINE = 0, 1      # sources of rows: what participants sent; what every client keeps


class Crew:
    """All ranks with the clients they host. `group` performs the local part of an order (see clients/group.py)."""

    def __init__(self, world: Solo, group, homes: np.ndarray):
        self.world, self.group = world, group
        self.homes = homes              # (N,) rank that hosts each client
        self.ids = np.empty(0, np.int64)      # participants of the round under way, ascending
        self.ranks = np.empty(0, np.int64)    # the rank that trains each of them
        self.asked = False                    # some rank was asked to stop (rank 0)

    def train(self, when: int, ids: np.ndarray, judge: bool, shared, ranks: np.ndarray | None = None) -> None:
        """Let participants train (rank 0), each at home or at `ranks`; with `judge` they are judged right after."""
        ranks = self.homes[ids] if ranks is None else ranks
        self.call(Order.TRAIN, np.int64(when), ids, ranks, np.bool_(judge), *shared)

    def call(self, order: Order, *arrays):
        """Give an order (rank 0), take part in it, and return its result."""
        if self.world.size > 1:
            buffer = frame(arrays)
            self.world.hear(np.array([order, buffer.size], np.int64))
            self.world.broadcast(buffer)
            arrays = unframe(buffer)
        return self.perform(order, [np.asarray(a) for a in arrays])

    def serve(self) -> int:
        """Take orders from rank 0 until it says STOP (workers); return the exit code that comes with it."""
        while True:
            header = np.empty(2, np.int64)
            self.world.hear(header)
            buffer = np.empty(int(header[1]), np.uint8)
            self.world.broadcast(buffer)
            if header[0] == Order.STOP:
                return int(unframe(buffer)[0])
            self.perform(Order(int(header[0])), unframe(buffer))

    def perform(self, order: Order, arrays: list[np.ndarray]):
        self.world.order = int(order)
        return getattr(self, "_" + order.name.lower())(*arrays)

    def _stop(self, code):
        """Nothing to do but to return."""

    def _train(self, when, ids, ranks, judge, *shared):
        self.ids, self.ranks = np.array(ids), np.array(ranks)
        self.group.train(int(when), self.ids, self.ids[self.ranks == self.world.rank], bool(judge), shared)

    def _sum(self, what, weights):
        return self.world.reduce(self.group.weighted(what, weights[self._at(what) == self.world.rank]))

    def _sum_by(self, what, weights, groups, k):
        here = self._at(what) == self.world.rank
        return self.world.reduce(self.group.weighted(what, weights[here], groups[here], int(k)))

    def _gather(self, what):
        return self._in_order(self.group.rows(what), self._at(what))

    def _at(self, what) -> np.ndarray:
        """Return the rank that holds each row of a source."""
        return self.ranks if what[0] == UP else self.homes

    def _note(self, slot, what, ids, coefficients, shape):
        here = self._at(what) == self.world.rank
        for client, block in zip(ids.tolist(), coefficients, strict=True):
            home, rows = self.homes[client], []
            for weights in block:
                scale = max(np.abs(weights).sum(), 1e-300)
                total = self.world.reduce(self.group.weighted(what, weights[here] / scale), home)
                rows.append((total, scale))
            if home == self.world.rank:
                self.group.note(int(slot), client, rows, tuple(shape))

    def _judge(self, when, *shared):
        return self.world.reduce(self.group.judge(int(when), shared, len(self.homes)))

    def _digest(self):
        return self._in_order(self.group.digests(), self.homes)

    def _touched(self):
        return self._in_order(self.group.touched(), self.homes)

    def _state(self, ids):
        fields = self.group.state(ids[self.homes[ids] == self.world.rank])
        return {name: self._in_order(rows, self.homes[ids]) for name, rows in fields.items()}

    def _restore(self, path, ids):
        self.group.restore(path.tobytes().decode(), ids)

    def _times(self):
        # a signal may reach any rank: rank 0 learns of it here, once a round
        mine = np.append(self.group.times(), self.world.stop())
        every = self.world.gather(mine[None], np.ones(self.world.size, np.int64))
        if every is None:
            return None
        self.asked = self.asked or bool(every[:, -1].any())
        return every[:, :-1]

    def _engine(self, name):
        self.group.use(name.tobytes().decode())

    def _probe(self, *shared):
        return self.world.gather(self.group.probe(shared)[None], np.ones(self.world.size, np.int64))

    def _in_order(self, rows: np.ndarray, ranks: np.ndarray):
        """Gather rows of ascending clients that lie at `ranks`, each rank's ascending too, in the clients' order."""
        gathered = self.world.gather(rows, np.bincount(ranks, minlength=self.world.size))
        if gathered is None:
            return None
        out = np.empty_like(gathered)
        out[np.argsort(ranks, kind="stable")] = gathered
        return out
