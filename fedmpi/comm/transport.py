"""How the ranks of a run reach each other: the few collectives that fedmpi uses, and what they are without MPI.

`World` (mpi_world.py) runs them over MPI, `Solo` is a single process, and `Counting` only counts bytes."""
from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np

from fedmpi.text import print_failure

if TYPE_CHECKING:
    from torch import Tensor

# A contiguous NumPy array, or a tensor of gpu_staging.py
Buffer = TypeVar("Buffer", np.ndarray, "Tensor")


class Closable(Protocol):
    """Something that ends before MPI does: the heartbeat."""

    def close(self) -> None:
        """Stop for good, before MPI ends."""


class Request(Protocol):
    """A non-blocking call of MPI."""

    # mpi4py spells it so.
    def Test(self) -> bool:  # noqa: N802
        """Say whether the call is done, and let MPI make progress."""


P = ParamSpec("P")
R = TypeVar("R")
Ranks = TypeVar("Ranks", bound="Transport")


def mark_collective(call: Callable[Concatenate[Ranks, P], R]) -> Callable[Concatenate[Ranks, P], R]:
    """Mark this rank as inside a collective, so that the heartbeat does not report it as stuck."""
    @wraps(call)
    def marked(self: Ranks, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self.collectives += 1
        self.in_collective = True
        try:
            return call(self, *args, **kwargs)
        finally:
            self.in_collective = False
    return marked


class Transport(ABC):
    """The ranks of a run: rank 0 is the server, all others are workers."""
    rank = 0
    size = 1
    # place among the ranks of this host
    local_rank = 0
    library = "none (one process)"
    thread_level = "none"
    # True if the MPI library takes GPU memory; None if it does not tell
    cuda_aware: bool | None = None
    # Rank 0 knows the same of all ranks once they have met: a library that was built for CUDA says no on a node without
    # a GPU.
    cuda_aware_by_rank: Sequence[bool | None] = ()
    # runs while ranks work, see heartbeat.py
    heartbeat: Closable | None = None
    # A rank may set it: it is called with the message of a failure before the job ends, and returns what to print. That
    # of a worker is called only if rank 0 does not answer, as its heartbeat found, or did not begin to end the job.
    on_failure: Callable[[str], str] | None = None
    # Rank 0 may set it: it is called while rank 0 waits for the others, until all have met once, and may raise.
    while_waiting: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.host = socket.gethostname()
        # for the heartbeat: collectives begun so far, whether one goes on, and the order under way (-1: none yet)
        self.collectives, self.in_collective, self.order = 0, False, -1
        # bytes that rank 0 or this worker sent and received
        self.sent = self.received = 0

    @abstractmethod
    def broadcast(self, buffer: Buffer) -> Buffer:
        """Fill `buffer` on every rank with rank 0's, and return it. Shape and type are the same on all ranks."""

    @abstractmethod
    def broadcast_header(self, header: np.ndarray) -> None:
        """Fill `header` with rank 0's; a worker waits here, asleep, for as long as it takes."""

    @abstractmethod
    def reduce(self, buffer: Buffer, root: int = 0) -> Buffer:
        """Return the sum over ranks at rank `root`. The buffers of other ranks are used up."""

    @abstractmethod
    def gather(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
        """Concatenate every rank's rows at rank 0 in rank order, and return None elsewhere.

        Args:
            rows: this rank's rows, (counts[rank], ...).
            counts: the number of rows of each rank, (size,)."""

    @abstractmethod
    def alltoall(self, parts: list[np.ndarray], sizes: np.ndarray) -> np.ndarray:
        """Send parts[r] to each rank r; return the numbers received, flat and in rank order.

        Args:
            parts: one array per rank.
            sizes: how many numbers come from each rank, (size,)."""

    def divide(self, n: int) -> np.ndarray:
        """Return where each rank's part of n columns begins, and the end, (size + 1,)."""
        return np.linspace(0, n, self.size + 1).astype(int)

    @abstractmethod
    def send(self, buffer: np.ndarray, rank: int) -> None:
        """Send a buffer to another rank, which must `recv` it."""

    @abstractmethod
    def recv(self, buffer: np.ndarray, rank: int) -> np.ndarray:
        """Fill a buffer with what another rank sends, and return it."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every rank is here."""

    @abstractmethod
    def fail(self, message: str, code: int) -> None:
        """Print a message and end the job with an exit code. Never returns."""

    @abstractmethod
    def leave(self) -> None:
        """Wait until the program has ended on all ranks; to be called when it has ended here."""

    @abstractmethod
    def close(self, code: int = 0) -> None:
        """Leave in an orderly way, before this process exits with `code`."""


class Solo(Transport):
    """A single process: every collective returns what it was given, and no MPI library is needed."""

    def broadcast(self, buffer: Buffer) -> Buffer:
        return buffer

    def broadcast_header(self, header: np.ndarray) -> None:
        """Do nothing: rank 0 gives the orders."""

    def reduce(self, buffer: Buffer, root: int = 0) -> Buffer:
        return buffer

    def gather(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
        return rows

    def alltoall(self, parts: list[np.ndarray], sizes: np.ndarray) -> np.ndarray:
        return parts[0].reshape(-1)

    def send(self, buffer: np.ndarray, rank: int) -> None:
        raise ValueError(f"there is no rank {rank}: this process is alone")

    def recv(self, buffer: np.ndarray, rank: int) -> np.ndarray:
        raise ValueError(f"there is no rank {rank}: this process is alone")

    def barrier(self) -> None:
        """Do nothing: nobody else is there."""

    def fail(self, message: str, code: int) -> None:
        try:
            print_failure(message)
        finally:
            os._exit(code)

    def leave(self) -> None:
        """Do nothing: nobody else is there."""

    def close(self, code: int = 0) -> None:
        """Do nothing: there is no MPI to leave."""


class Counting(Solo):
    """Rank 0 of a pretended two, which hosts all clients: collectives move nothing, and their bytes are counted."""
    size = 2

    def __init__(self) -> None:
        super().__init__()
        # bytes from rank 0 to a worker, in sums from each rank, of rows that all ranks gather, and of those that they
        # hand each other
        self.broadcast_bytes = self.reduced_bytes = self.gathered_bytes = self.exchanged_bytes = 0

    def broadcast(self, buffer: Buffer) -> Buffer:
        self.broadcast_bytes += buffer.nbytes
        return buffer

    def reduce(self, buffer: Buffer, root: int = 0) -> Buffer:
        self.reduced_bytes += buffer.nbytes
        return buffer

    def gather(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
        self.gathered_bytes += rows.nbytes
        return rows

    def alltoall(self, parts: list[np.ndarray], sizes: np.ndarray) -> np.ndarray:
        self.exchanged_bytes += sum(part.nbytes for part in parts)
        return super().alltoall(parts, sizes)

    def divide(self, n: int) -> np.ndarray:
        """Leave all columns to rank 0, since there is no other rank to work on a part of them."""
        return np.array([0, n, n])
