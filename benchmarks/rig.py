"""What all benchmarks share: a pool on a synthetic federation, and measurements that all ranks start together."""
from __future__ import annotations

import time

import numpy as np

from fedmpi.assembly import build_parts
from fedmpi.clients.checked_method import CheckedMethod
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.comm.orders import UP
from fedmpi.comm.rows import make_rows
from fedmpi.config.schema import resolve
from fedmpi.method import Participants
from fedmpi.server.rounds import send_messages


class Rig:
    """A pool whose rounds are timed. Every rank builds one, and all ranks call the same methods in the same order."""

    def __init__(self, world, federation, settings: dict):
        self.world, self.config = world, resolve({"data": {"clients": len(federation.sizes)}, **settings})
        self.parts = build_parts(world, self.config, federation, server_host="")
        self.shared = self.parts.shared
        first = self.parts.pool.hosted.store.first
        self.checked = CheckedMethod(self.parts.method, first, self.parts.up, federation.classes)

    def network(self):
        """Return a new module like the one that is trained."""
        shape = self.parts.federation.shape
        inputs = (shape[2], *shape[:2]) if len(shape) == 3 else shape
        return self.config.model.build(inputs, self.parts.federation.classes)

    def slowest(self, work) -> tuple[float, int]:
        """Run work() -> (seconds, steps) on every rank at once; return the slowest rank's seconds and all steps."""
        # All start together.
        self.world.barrier()
        mine = np.array([work()], np.float64)
        every = self.world.gather(mine, np.ones(self.world.size, np.int64))
        return (0., 0) if every is None else (float(every[:, 0].max()), int(every[:, 1].sum()))

    def round(self, t: int, share: float = 1., ranks=None, ids=None) -> float:
        """Run one round without evaluation, with participants `ids` or a drawn share, on their own ranks or on `ranks`;
        return rank 0's seconds."""
        pool, parts = self.parts.pool, self.parts
        if self.world.rank:
            pool.serve()
            return 0.
        sizes = parts.federation.sizes
        if ids is None:
            ids = np.sort(np.random.default_rng(t).permutation(len(sizes))[:max(1, round(share * len(sizes)))])
        self.who = Participants(ids, sizes[ids], t, 0, len(sizes))
        begin = time.perf_counter()
        send_messages(pool, self.checked, self.shared, self.who)
        pool.train(t, ids.astype(np.int64), False, self.shared, ranks)
        self.shared = self._served()
        seconds = time.perf_counter() - begin
        pool.call(OrderPerformer.stop, np.int64(0))
        return seconds

    def step(self) -> None:
        """Repeat the server's step of the last round."""
        if self.world.rank:
            self.parts.pool.serve()
            return
        self._served()
        self.parts.pool.call(OrderPerformer.stop, np.int64(0))

    def _served(self):
        return self.checked.server(self.shared, make_rows(self.parts.pool, UP, self.parts.up), self.who)

    def evaluate(self, t: int) -> None:
        """Measure all clients' models on their test data."""
        pool = self.parts.pool
        if self.world.rank:
            pool.serve()
            return
        pool.evaluate(t, self.shared)
        pool.call(OrderPerformer.stop, np.int64(0))
