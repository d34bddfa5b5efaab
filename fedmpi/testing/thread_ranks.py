"""Ranks that are threads of this process, to show that a result does not depend on who hosts which client.

One of them computes at a time, so that networks and PyTorch's generators need not be guarded. No MPI is needed."""
from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from fedmpi.comm.rank_pool import OrderResult
from fedmpi.comm.transport import Buffer, Transport
from fedmpi.errors import FedmpiError

Returned = TypeVar("Returned")
PassedOn = TypeVar("PassedOn")
# Seconds after which a rank that waits for the others gives up.
WAIT_S = 600.


class Meeting:
    """What the ranks have in common: the turn to compute, the place where they wait, and what they pass on."""

    def __init__(self, size: int):
        self.size, self.turn = size, threading.Lock()
        self.barrier = threading.Barrier(size, timeout=WAIT_S)
        # what each rank passes on in the collective that all of them call
        self.shown: dict[int, OrderResult] = {}
        # None is the last letter of a rank that has failed
        self.letters: defaultdict[tuple[int, int], SimpleQueue[np.ndarray | None]] = defaultdict(SimpleQueue)


class ThreadRank(Transport):
    """One rank, which computes in a thread of its own while it has the turn."""
    library = "none (threads)"

    def __init__(self, rank: int, meeting: Meeting):
        super().__init__()
        self.rank, self.size, self.meeting = rank, meeting.size, meeting

    def barrier(self) -> None:
        self.meeting.turn.release()
        try:
            self.meeting.barrier.wait()
        finally:
            self.meeting.turn.acquire()

    def _exchange(self, mine: PassedOn, read: Callable[[list[PassedOn]], Returned]) -> Returned:
        """Show the other ranks something; return what `read` makes of what all of them show, in rank order."""
        self.meeting.shown[self.rank] = mine
        self.barrier()
        found = read([self.meeting.shown[rank] for rank in range(self.size)])
        self.barrier()
        return found

    def broadcast(self, buffer: Buffer) -> Buffer:
        def read(shown: list[Buffer]) -> None:
            if self.rank:
                buffer[...] = shown[0]
        self._exchange(buffer, read)
        return buffer

    def broadcast_header(self, header: np.ndarray) -> None:
        self.broadcast(header)

    def reduce(self, buffer: Buffer, root: int = 0) -> Buffer:
        def read(shown: list[Buffer]) -> Buffer:
            total = buffer + 0
            for them in shown[:self.rank] + shown[self.rank + 1:]:
                total += them
            return total
        return self._exchange(buffer, read) if self.rank == root else self._exchange(buffer, lambda shown: buffer)

    def gather(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
        return self._exchange(rows, lambda shown: None if self.rank else np.concatenate(shown))

    def alltoall(self, parts: list[np.ndarray], sizes: np.ndarray) -> np.ndarray:
        return self._exchange(parts, lambda shown: np.concatenate([them[self.rank].reshape(-1) for them in shown]))

    def send(self, buffer: np.ndarray, rank: int) -> None:
        self.meeting.letters[self.rank, rank].put(buffer.copy())

    def recv(self, buffer: np.ndarray, rank: int) -> np.ndarray:
        self.meeting.turn.release()
        try:
            letter = self.meeting.letters[rank, self.rank].get(timeout=WAIT_S)
        finally:
            self.meeting.turn.acquire()
        if letter is None:
            raise threading.BrokenBarrierError
        buffer[...] = letter
        return buffer

    def fail(self, message: str, code: int) -> None:
        raise FedmpiError(message)

    def leave(self) -> None:
        """Do nothing: the thread ends by itself."""

    def close(self, code: int = 0) -> None:
        """Do nothing: the thread ends by itself."""


def run_ranks(size: int, work: Callable[[Transport], Returned]) -> Returned:
    """Let so many ranks do their work, each in a thread; return rank 0's result. The first error is raised again.

    Args:
        work: is called with a rank's transport."""
    meeting, found, errors = Meeting(size), {}, []

    def start(rank: int) -> None:
        with meeting.turn:
            try:
                found[rank] = work(ThreadRank(rank, meeting))
            except BaseException as error:
                errors.append(error)
                # the other ranks would wait for this one
                meeting.barrier.abort()
                for other in range(size):
                    meeting.letters[rank, other].put(None)
    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found[0]
