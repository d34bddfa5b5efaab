"""How ranks notice that another one has left the user's program (`sys.exit` at one rank), in place of waiting forever.

A rank whose program ends tells all others, and then waits until theirs have ended, too, as the end of MPI itself does.
A rank that waits in one of fedmpi's collectives meanwhile ends the job."""
from __future__ import annotations

import time
from types import ModuleType

import numpy as np

from fedmpi.comm.transport import Request

# Tag of the message with which a rank leaves.
LEAVING_TAG = 7002
# What the others had begun together with that rank is done within so long, on a crowded machine, too.
PATIENCE_S = 30.


class Departures:
    """Who has left the program; once this rank leaves, a request that is done when all have left."""

    def __init__(self, mpi: ModuleType):
        self.mpi, self.comm = mpi, mpi.COMM_WORLD
        # when this rank heard of the first one
        self.since: float | None = None
        # once this rank leaves: the others that stay, and what it told them
        self.others: list[int] | None = None
        self.told: list[Request] = []

    def find_why_to_end(self) -> str:
        """Return why this rank need not wait any longer, "" if it must."""
        if self.others is not None or not self.comm.Iprobe(tag=LEAVING_TAG):
            return ""
        self.since = self.since or time.monotonic()
        if time.monotonic() - self.since < PATIENCE_S:
            return ""
        status = self.mpi.Status()
        self.comm.Probe(tag=LEAVING_TAG, status=status)
        return (f"fedmpi: rank {status.source} has left the program (sys.exit?), and rank {self.comm.rank} waits for "
                "it; let all ranks make the same calls")

    def announce(self) -> None:
        """Tell all others that this rank leaves."""
        self.others = [rank for rank in range(self.comm.size) if rank != self.comm.rank]
        self.told = [self.comm.Isend(np.zeros(1, np.uint8), rank, LEAVING_TAG) for rank in self.others]

    def Test(self) -> bool:  # noqa: N802
        """Say whether all others have left, too; `announce` comes first."""
        assert self.others is not None
        for rank in [rank for rank in self.others if self.comm.Iprobe(rank, LEAVING_TAG)]:
            self.comm.Recv(np.empty(1, np.uint8), rank, LEAVING_TAG)
            self.others.remove(rank)
        return not self.others and all(request.Test() for request in self.told)
