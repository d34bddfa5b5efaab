"""The heartbeat: it finds ranks that hang (a stopped process, a dead node, a file system that does not answer).

On every worker a thread reports to rank 0 what its rank is doing, and on rank 0 a thread reports to the workers. If a
rank is silent, its process or its node is gone. If it reports the same work again and again, it is stuck outside any
collective. Either of them for `comm.timeout` seconds ends the job, and the message names the rank. A long round is
neither, because every client counts as progress, and so does every step of clients that are trained at once. On a GPU
a step counts when it is launched, one by one also if it is replayed as a CUDA graph; the GPU may finish it later. Time
is counted in this thread's own wake-ups, not by the clock, so a suspended machine or job is not mistaken for a hang."""
from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.comm.orders import ORDERS
from fedmpi.context import RankContext
from fedmpi.errors import FAILED

if TYPE_CHECKING:
    from fedmpi.comm.mpi_world import World
    from fedmpi.comm.transport import Request

# Reports within the timeout, and the longest time between two.
REPORTS_PER_TIMEOUT = 10
LONGEST_BEAT_S = 1.
# The job has so long to end in an orderly way.
ORDERLY_END_S = 10.
# If rank 0 is silent, the workers end the job one after another, since one message is enough; the rest all at once.
MAX_WORKERS_IN_TURN = 20
# Late ranks that the message names.
MAX_NAMED = 5
# Fields of a report; MORE counts the clients that are trained beside CLIENT, and TRAINED the steps of such clients.
STEP, INSIDE, ORDER, ROUND, CLIENT, MORE, TRAINED = range(7)
# A rank that has not reported yet; it is also every rank's last report.
NO_REPORT = np.full(7, -1, np.int64)


class Heartbeat:
    """This rank's heartbeat: a worker watches rank 0, and rank 0 watches all workers. Every rank starts it together."""

    def __init__(self, world: World, timeout: float, hosts: list[str], context: RankContext):
        """Start to report and to watch.

        Args:
            world: the ranks, over an MPI of thread level "multiple".
            timeout: seconds without progress after which the job ends.
            hosts: the ranks' hosts by rank; a worker needs only rank 0's.
            context: which client and round are at work."""
        self.world, self.timeout, self.hosts, self.context = world, timeout, hosts, context
        self.beat = min(LONGEST_BEAT_S, timeout / REPORTS_PER_TIMEOUT)
        # a communicator of its own, so that reports never meet other messages
        self.comm = world.comm.Dup()
        self.peers = [0] if world.rank else list(range(1, world.size))
        self.limit = timeout + min(max(world.rank - 1, 0), MAX_WORKERS_IN_TURN) * self.beat
        self.last_report = dict.fromkeys(self.peers, NO_REPORT)
        # peers that have closed their heartbeat: they report no more
        self.closed: set[int] = set()
        # seconds without a report, and without progress
        self.silent = dict.fromkeys(self.peers, 0.)
        self.stuck = dict.fromkeys(self.peers, 0.)
        # sends under way, by rank
        self.sending: dict[int, Request] = {}
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Report and look at the peers' reports until the end; end the job if a peer is late."""
        while not self.over.wait(self.beat):
            for peer in self.peers:
                self.silent[peer] += self.beat
                self.stuck[peer] += self.beat
            self.receive_reports()
            self.send_report(self.make_report())
            self.world.end_if_worker_failed()
            late = find_late(self.silent, self.stuck, self.last_report, self.limit)
            if late:
                self.fail(late)

    def make_report(self) -> np.ndarray:
        """Return what this rank is doing, (7,) int64."""
        world, work = self.world, self.context
        clients = np.ravel([-1 if work.client is None else work.client])
        return np.array([world.collectives, world.in_collective, world.order, work.round, clients[0],
                         len(clients) - 1, work.steps], np.int64)

    def send_report(self, report: np.ndarray) -> None:
        """Send a report to the peers that received the one before, so that none pile up if nobody listens."""
        for peer in self.peers:
            if peer not in self.sending or self.sending[peer].Test():
                self.sending[peer] = self.comm.Isend(report, peer)

    def receive_reports(self) -> None:
        """Receive all reports that have arrived."""
        status, report = self.world.mpi.Status(), np.empty_like(NO_REPORT)
        while self.comm.Iprobe(status=status):
            peer = status.source
            self.comm.Recv(report, peer)
            self.silent[peer] = 0.
            if report[STEP] < 0:
                self.closed.add(peer)
            if (report != self.last_report[peer]).any():
                self.last_report[peer], self.stuck[peer] = report.copy(), 0.

    def fail(self, late: list[int]) -> None:
        """End the job, even if the orderly way is blocked, for example by the file system that does not answer."""
        words = "\n".join(self.describe_late(peer) for peer in late[:MAX_NAMED]) + (
            f"\n... and {len(late) - MAX_NAMED} ranks more" if len(late) > MAX_NAMED else "")
        words = (f"fedmpi: {words}\nlook at that machine and its file systems; if a client or a server step takes so "
                 "long, set comm.timeout higher (0: wait for ever)")

        def end_anyway() -> None:
            with suppress(OSError):
                os.write(2, f"{words}\n".encode(errors="backslashreplace"))
            os._exit(FAILED)
        timer = threading.Timer(ORDERLY_END_S, end_anyway)
        timer.daemon = True
        timer.start()
        # A worker's peer is rank 0, which does not answer.
        self.world.fail(words, FAILED, tell=False)

    def describe_late(self, peer: int) -> str:
        """Return the sentence that names a late rank."""
        own = self.make_report()
        waits = f"rank {self.world.rank} {f'waits in {describe_report(own)}' if own[INSIDE] else 'works'}"
        return (f"rank {peer} of {self.world.size} on {self.hosts[peer]} made no progress for {self.timeout:g} s "
                f"(comm.timeout) and gave its last sign of life {self.silent[peer]:.0f} s ago; "
                f"last known: {describe_report(self.last_report[peer])}; {waits}")

    def close(self) -> None:
        """Stop the thread, and receive all reports before MPI ends. Every rank calls it.

        A peer that closed earlier may have sent its last report while this rank's thread still received them."""
        self.over.set()
        self.thread.join()
        ends = [*self.sending.values(), *(self.comm.Isend(NO_REPORT, peer) for peer in self.peers)]
        report = np.empty_like(NO_REPORT)
        for peer in (peer for peer in self.peers if peer not in self.closed):
            report[STEP] = 0
            while report[STEP] >= 0:
                self.comm.Recv(report, peer)
        self.world.mpi.Request.Waitall(ends)
        self.comm.Free()


def find_late(silent: dict[int, float], stuck: dict[int, float], reports: dict[int, np.ndarray],
              limit: float) -> list[int]:
    """Return the ranks that keep the others waiting: the silent ones, or else those that are stuck at work.

    A rank inside a collective is not late: it may wait for ever for one of these.

    Args:
        silent: seconds without a report, by rank.
        stuck: seconds without progress, by rank.
        reports: each rank's last report.
        limit: seconds after which a rank is late."""
    return ([peer for peer in silent if silent[peer] > limit]
            or [peer for peer in stuck if stuck[peer] > limit and not reports[peer][INSIDE]])


def describe_report(report: np.ndarray) -> str:
    """Return a report in words."""
    if report[ORDER] < 0:
        return "ready for its first order"
    more = f" and {report[MORE]} more" if report[MORE] else ""
    client = [f"client {report[CLIENT]}" + more] if report[CLIENT] >= 0 else []
    return ", ".join([*client, f"round {report[ROUND] + 1}", f"order {ORDERS[int(report[ORDER])].name}"])
