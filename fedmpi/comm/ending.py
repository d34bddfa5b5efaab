"""How the workers learn that rank 0 is ending the job, which takes long while a checkpoint is being written.

A worker that fails, or has failed, then leaves the last word to rank 0: it must not abort the job in the middle."""
from __future__ import annotations

import threading
import time
from types import ModuleType

import numpy as np

from fedmpi.comm.transport import Request

# Tag of the empty message in which rank 0 says so.
ENDING_TAG = 7003
# A worker looks for it that often.
LOOK_S = .01


class Ending:
    """Whether rank 0 is ending the job."""

    def __init__(self, mpi: ModuleType):
        self.comm = mpi.COMM_WORLD
        # what rank 0 told the workers; kept, since the messages may be under way until the end
        self.told: list[Request] = []

    def tell_workers(self) -> None:
        """Tell all workers that rank 0 has begun to end the job."""
        self.told = [self.comm.Isend(np.empty(0, np.uint8), rank, ENDING_TAG) for rank in range(1, self.comm.size)]

    def has_begun(self) -> bool:
        """Say whether rank 0 has told this worker so."""
        return bool(self.comm.Iprobe(0, ENDING_TAG))

    def wait(self, seconds: float) -> None:
        """Wait until rank 0 has ended the job, and so this worker; return if it does not begin to in so many seconds.

        A rank 0 that hangs once it has begun ends, too: after `comm.timeout` a heartbeat finds it, or finds this worker
        which makes no progress either. Without that setting only the scheduler's limit is left."""
        for _ in range(round(seconds / LOOK_S)):
            if self.has_begun():
                threading.Event().wait()
            time.sleep(LOOK_S)
