"""Ranks that hang: a stopped process, a dead node whose connection stays open, a file system that does not answer.

A thread of every worker tells rank 0 now and then how far its rank is, and one of rank 0 tells the workers. Silence
means that a process or its node is gone; word that nothing moves means a rank that is stuck outside any collective.
Either, for `comm.timeout` seconds, ends the job by name. A long round is neither: every client is progress. Only the
time in which this process ran itself is counted, so a suspended machine or job hangs nobody."""
from __future__ import annotations

import os
import threading

import numpy as np

from fedmpi.comm.orders import Order
from fedmpi.context import RankContext
from fedmpi.errors import FAILED

SIGNS = 10           # signs of life within the timeout, and ...
BEAT_S = 1.            # ... the longest time between two, seconds
ORDERLY_END_S = 10.       # seconds to end the job in an orderly way
MAX_REPORTERS = 20           # workers that end the job one after another where rank 0 is silent: one message is enough
STEP, INSIDE, ORDER, ROUND, CLIENT, MORE = range(6)      # what a rank tells; MORE clients are trained at once
NO_NEWS = np.full(6, -1, np.int64)                       # before a rank told anything, and the last that it tells


class Watch:
    """This rank's watch: of rank 0 at a worker, of all workers at rank 0. Every rank starts it together.

    `hosts` are the ranks' hosts by rank; a worker needs rank 0's alone. `context` says which client is at work."""

    def __init__(self, world, timeout: float, hosts: list[str], context: RankContext):
        self.world, self.timeout, self.hosts, self.context = world, timeout, hosts, context
        self.beat = min(BEAT_S, timeout / SIGNS)
        self.comm = world.comm.Dup()      # what is told here never meets what is sent elsewhere
        self.peers = [0] if world.rank else list(range(1, world.size))
        self.limit = timeout + min(max(world.rank - 1, 0), MAX_REPORTERS) * self.beat
        self.known = dict.fromkeys(self.peers, NO_NEWS)
        self.silent = dict.fromkeys(self.peers, 0.)      # seconds without a word
        self.still = dict.fromkeys(self.peers, 0.)       # seconds without progress
        self.told = {}                                   # the sends under way, by rank
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.over.wait(self.beat):
            for peer in self.peers:
                self.silent[peer] += self.beat
                self.still[peer] += self.beat
            self.hear()
            self.tell(self.here())
            late = missing(self.silent, self.still, self.known, self.limit)
            if late:
                self.fail(late)

    def here(self) -> np.ndarray:
        """Say how far this rank is."""
        world, at_work = self.world, self.context
        clients = np.ravel([-1 if at_work.client is None else at_work.client])
        return np.array([world.steps, world.inside, world.order, at_work.round, clients[0], len(clients) - 1], np.int64)

    def tell(self, what: np.ndarray) -> None:
        """Send to those who received what was sent before: nothing piles up where nobody listens."""
        for peer in self.peers:
            if peer not in self.told or self.told[peer].Test():
                self.told[peer] = self.comm.Isend(what, peer)

    def hear(self) -> None:
        status, words = self.world.mpi.Status(), np.empty_like(NO_NEWS)
        while self.comm.Iprobe(status=status):
            peer = status.source
            self.comm.Recv(words, peer)
            self.silent[peer] = 0.
            if (words != self.known[peer]).any():
                self.known[peer], self.still[peer] = words.copy(), 0.

    def fail(self, late: list[int]) -> None:
        """End the job; even where the orderly way is blocked, by the very file system that does not answer, say."""
        words = "\n".join(self.sentence(peer) for peer in late[:5]) + (
            f"\n... and {len(late) - 5} ranks more" if len(late) > 5 else "")
        words = (f"fedmpi: {words}\nlook at that machine and its file systems; where a client or a server step takes "
                 "so long, set comm.timeout higher (0: wait for ever)")

        def anyway():
            os.write(2, f"{words}\n".encode())
            os._exit(FAILED)
        timer = threading.Timer(ORDERLY_END_S, anyway)
        timer.daemon = True
        timer.start()
        self.world.fail(words, FAILED, tell=False)      # a worker's peer is rank 0, which does not answer

    def sentence(self, peer: int) -> str:
        now = self.here()
        waits = f"rank {self.world.rank} waits in {doing(now)}" if now[INSIDE] else f"rank {self.world.rank} works"
        return (f"rank {peer} of {self.world.size} on {self.hosts[peer]} made no progress for {self.timeout:g} s "
                f"(comm.timeout) and gave its last sign of life {self.silent[peer]:.0f} s ago; "
                f"last known: {doing(self.known[peer])}; {waits}")

    def close(self) -> None:
        """Stop, and receive all that was told before MPI ends; every rank calls it."""
        self.over.set()
        self.thread.join()
        ends = [*self.told.values(), *(self.comm.Isend(NO_NEWS, peer) for peer in self.peers)]
        words = np.empty_like(NO_NEWS)
        for peer in self.peers:
            words[STEP] = 0
            while words[STEP] >= 0:
                self.comm.Recv(words, peer)
        self.world.mpi.Request.Waitall(ends)
        self.comm.Free()


def missing(silent: dict, still: dict, known: dict, limit: float) -> list[int]:
    """Return the ranks that keep the others waiting: those that are silent, else those that are stuck at work. A rank
    in a collective may wait for ever: for one of these."""
    return ([peer for peer in silent if silent[peer] > limit]
            or [peer for peer in still if still[peer] > limit and not known[peer][INSIDE]])


def doing(words: np.ndarray) -> str:
    """Say what a rank told of its work."""
    if words[ORDER] < 0:
        return "ready for its first order"
    more = f" and {words[MORE]} more" if words[MORE] else ""
    where = [f"client {words[CLIENT]}" + more] if words[CLIENT] >= 0 else []
    return ", ".join([*where, f"round {words[ROUND] + 1}", f"order {Order(int(words[ORDER])).name}"])
