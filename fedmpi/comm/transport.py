"""The MPI world: who we are, and the few collectives that fedmpi uses. The only file that imports mpi4py.

Waiting ranks do not spin: where a rank may wait for work (an order's header, a sum) a tiny non-blocking call is
polled with short sleeps first, so that it leaves its core to a rank that works. (Blocking MPI calls burn a core in
most libraries.) Where a node has more ranks than cores, the library is told to yield inside its calls too."""
from __future__ import annotations

import os
import socket
import sys
import threading
import time
from functools import wraps

import numpy as np

from fedmpi.comm.gpu_staging import cuda_aware, wait_for_gpu
from fedmpi.comm.launcher import drain, refuse_lonely, shares_cores, started_by_srun
from fedmpi.errors import FAILED

PIECE_ELEMENTS = 1 << 22      # elements per MPI call: counts stay far below 2^31, and what a sum needs beside it small
MAX_RANKS_FOR_HALVING = 8              # ranks whose sums go from rank to rank, see World.reduce
FAILURE = 7001       # tag of a worker's last words to rank 0
SPIN = 2e-4          # seconds of polling before the first sleep
AFTER = .5           # seconds after the workers at which rank 0 leaves srun with a code other than 0
NAPS = (1e-4, 2e-3)  # shortest and longest sleep between polls, seconds
LATE = 16            # a nap is at most this part of the time waited so far: so late is one heard at most
TELL_S = 2.          # seconds in which MPI must take a worker's last words to rank 0
LAST_WORDS_S = 60.   # seconds that rank 0 has to end the job, on a crowded machine too, before the worker does it
LOOK_S = .01         # seconds between two looks whether MPI took them


def collective(call):
    """Mark this rank as inside a collective, so that the heartbeat (heartbeat.py) does not report it as stuck."""
    @wraps(call)
    def noted(self, *arguments):
        self.steps, self.inside = self.steps + 1, True
        try:
            return call(self, *arguments)
        finally:
            self.inside = False
    return noted


class Solo:
    """The world of a single process: no MPI library is needed."""
    rank, size, local_rank = 0, 1, 0
    steps, inside, order = 0, False, -1      # collectives begun; whether one goes on; the order under way
    watch = None                             # of the other ranks, while a run goes on
    library = "none (one process)"
    thread_level = "none"
    cuda_aware = None                        # the library takes GPU memory; None: it does not tell

    def __init__(self):
        self.host = socket.gethostname()
        self.sent = self.received = 0

    def broadcast(self, buffer: np.ndarray) -> np.ndarray:
        return buffer

    def reduce(self, buffer: np.ndarray, root: int = 0) -> np.ndarray:
        return buffer

    def gather(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        return rows

    def swap(self, parts: list[np.ndarray], sizes: np.ndarray) -> np.ndarray:
        return parts[0].reshape(-1)

    def hear(self, header: np.ndarray) -> None:
        """Receive nothing: rank 0 gives the orders."""

    def fail(self, message: str, code: int) -> None:
        print(message, file=sys.stderr, flush=True)
        os._exit(code)

    def close(self, code: int = 0) -> None:
        """Nothing to finalise."""


class World(Solo):
    """An MPI communicator seen as one server (rank 0) and its workers."""

    def __init__(self, mpi):
        super().__init__()
        self.mpi, self.comm = mpi, mpi.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.library, self.cuda_aware = library_of(mpi), cuda_aware(mpi)
        self.thread_level = ("single", "funneled", "serialized", "multiple")[mpi.Query_thread()]
        local = self.comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.local_rank = local.rank
        local.Free()
        self.failing = threading.Lock()
        self._spare = np.empty(0, np.uint8)      # what is received to be added, kept from sum to sum
        self.on_failure = None      # rank 0 may set it: called with a worker's message before the job ends

    @collective
    def broadcast(self, buffer):
        """Fill `buffer` (contiguous, same size everywhere; an array, or a tensor of gpu_staging.py) with rank 0's."""
        self.meet()      # polled, so that rank 0 hears of a worker that failed instead of blocking
        flat = buffer.reshape(-1)
        wait_for_gpu(flat)
        for start in range(0, len(flat), PIECE_ELEMENTS):
            self.comm.Bcast(flat[start:start + PIECE_ELEMENTS], 0)
        self._count(buffer.nbytes, from_root=True)
        return buffer

    @collective
    def reduce(self, buffer, root: int = 0):
        """Return the sum over ranks at rank `root`; the buffers (as in `broadcast`) of other ranks are used up.

        A few ranks send to each other, half of them in every step. (MPICH's Reduce of 8 MB took 25-40 ms with 3 ranks
        on 2 cores, where this takes 3-9.)"""
        self.meet()
        flat = buffer.reshape(-1)
        wait_for_gpu(flat)
        for start in range(0, len(flat), PIECE_ELEMENTS):
            part = flat[start:start + PIECE_ELEMENTS]
            if self.size <= MAX_RANKS_FOR_HALVING:
                self._halve(part, root)
            else:
                self.comm.Reduce(self.mpi.IN_PLACE if self.rank == root else part, part, self.mpi.SUM, root)
        if root == 0:
            self._count(buffer.nbytes, from_root=False)
        elif self.rank == 0:      # it adds its part as every rank does; nobody hears all of it but the root
            self.sent += buffer.nbytes
        elif self.rank == root:
            self.received += buffer.nbytes
        return buffer

    def _halve(self, part, root: int) -> None:
        """Add all ranks' parts at `root`: in step 1, 2, 4, ... ranks so far apart join, and one of both is done."""
        place, step = (self.rank - root) % self.size, 1
        while step < self.size:
            if place & step:
                return self.comm.Send(part, (self.rank - step) % self.size)
            if place + step < self.size:
                other = self._scratch(part)
                self.comm.Recv(other, (self.rank + step) % self.size)
                part += other
                wait_for_gpu(part)
            step *= 2

    def _scratch(self, like):
        if not isinstance(like, np.ndarray):
            return like.new_empty(like.shape)
        if self._spare.nbytes < like.nbytes:
            self._spare = np.empty(like.nbytes, np.uint8)
        return self._spare[:like.nbytes].view(like.dtype)

    @collective
    def gather(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
        """Concatenate every rank's rows (its own number each, `counts[rank]`) at rank 0, in rank order."""
        self.meet()
        rows = np.ascontiguousarray(rows)
        width = int(np.prod(rows.shape[1:], dtype=np.int64))
        if self.rank:
            for start in range(0, rows.size, PIECE_ELEMENTS):
                self.comm.Send(rows.reshape(-1)[start:start + PIECE_ELEMENTS], 0)
            self._count(rows.nbytes, from_root=False)
            return None
        out = np.empty((int(counts.sum()), *rows.shape[1:]), rows.dtype)
        flat, begin = out.reshape(-1), 0
        for rank, count in enumerate(counts * width):
            part = flat[begin:begin + count]
            if rank == 0:
                part[:] = rows.reshape(-1)
            for start in range(0, part.size if rank else 0, PIECE_ELEMENTS):
                self.comm.Recv(part[start:start + PIECE_ELEMENTS], rank)
            begin += count
        self.received += out.nbytes - rows.nbytes
        return out

    @collective
    def give(self, buffer: np.ndarray, rank: int) -> None:
        """Send a buffer to another rank, which must `take` it."""
        for start in range(0, buffer.size, PIECE_ELEMENTS):
            self.comm.Send(buffer[start:start + PIECE_ELEMENTS], rank)

    @collective
    def take(self, buffer: np.ndarray, rank: int) -> np.ndarray:
        """Fill a buffer with what another rank gives."""
        for start in range(0, buffer.size, PIECE_ELEMENTS):
            self.comm.Recv(buffer[start:start + PIECE_ELEMENTS], rank)
        return buffer

    @collective
    def swap(self, parts: list[np.ndarray], sizes: np.ndarray) -> np.ndarray:
        """Send parts[r] to each rank r; return the numbers that came here, `sizes[r]` from rank r, in rank order."""
        self.meet()
        out = np.concatenate([part.reshape(-1) for part in parts])
        got = np.empty(int(sizes.sum()), out.dtype)
        self.comm.Alltoallv([out, [part.size for part in parts]], [got, sizes.tolist()])
        if self.rank == 0:
            self.sent += out.nbytes - parts[0].nbytes
            self.received += got.nbytes - parts[0].nbytes
        return got

    @collective
    def hear(self, header: np.ndarray) -> None:
        """Take part in the broadcast of an order's header; a worker waits here, asleep, for as long as it takes."""
        self._poll(self.comm.Ibcast(header, 0))

    def meet(self) -> None:
        """Wait until every rank is here, without burning a core."""
        self._poll(self.comm.Ibarrier())

    def _poll(self, request) -> None:
        begin = time.perf_counter()
        while not request.Test():
            waited = time.perf_counter() - begin
            if waited > SPIN:
                time.sleep(min(max(waited / LATE, NAPS[0]), NAPS[1]))
            if self.rank == 0 and self.comm.Iprobe(tag=FAILURE):
                self._last_words()

    def _last_words(self) -> None:
        status = self.mpi.Status()
        self.comm.Probe(tag=FAILURE, status=status)
        text = np.empty(status.Get_count(self.mpi.BYTE), np.uint8)
        self.comm.Recv(text, status.source, FAILURE)
        self.fail(text[1:].tobytes().decode(errors="replace"), int(text[0]))

    def fail(self, message: str, code: int = FAILED, tell: bool = True) -> None:
        """End the whole job now: rank 0 says why, once; a worker tells rank 0 first, unless that does not answer (tell
        is False). Never returns."""
        if not self.failing.acquire(blocking=False):
            threading.Event().wait()      # another thread ends the job
        if self.rank and tell and self._told(message, code):
            time.sleep(LAST_WORDS_S)      # rank 0 ends the job; if it cannot, we do
        if self.rank == 0 and self.on_failure:
            message = self.on_failure(message)
        print(message, file=sys.stderr, flush=True)
        drain(sys.stdout, sys.stderr)
        self.comm.Abort(code)
        os._exit(code)      # MPI_Abort returns in some libraries

    def _told(self, message: str, code: int) -> bool:
        text = np.frombuffer(bytes([code]) + message.encode()[:60_000], np.uint8)
        request = self.comm.Isend(text, 0, FAILURE)
        for _ in range(round(TELL_S / LOOK_S)):
            if request.Test():
                return True
            time.sleep(LOOK_S)
        return False

    def _count(self, nbytes: int, from_root: bool) -> None:
        if (self.rank == 0) == from_root:
            self.sent += nbytes * (self.size - 1 if from_root else 1)
        else:
            self.received += nbytes

    def close(self, code: int = 0) -> None:
        """Leave MPI, to exit with `code`: all ranks, but under srun workers with 0 and at once, and rank 0 after them.

        srun --kill-on-bad-exit takes the first code other than 0 for a crash, kills the rest and reports that."""
        self.meet()
        if self.watch:
            self.watch.close()
        self.mpi.Finalize()
        if code and started_by_srun():
            if self.rank:
                drain(sys.stdout, sys.stderr)
                os._exit(0)
            time.sleep(AFTER)


def open_world() -> Solo:
    """Join the MPI world, or be alone where there is no MPI library. Raises BadInput for a launch that cannot work."""
    if shares_cores():
        os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")      # MPICH
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")      # Open MPI
    try:
        import mpi4py
        # below "multiple" MPICH 5 moves intra-node reductions through small cells with bare spinning: 7 MB took 13 s
        # with 3 ranks on 2 cores, where this level takes 20 ms
        mpi4py.rc.thread_level = "multiple"
        from mpi4py import MPI
        world = World(MPI) if MPI.COMM_WORLD.size > 1 else Solo()
        if world.size == 1:
            world.library, world.cuda_aware = library_of(MPI), cuda_aware(MPI)
    except (ImportError, RuntimeError) as error:
        world = Solo()
        world.library = f"none ({' '.join(str(error).split())[:120]})"
    refuse_lonely(world)
    return world


def library_of(mpi) -> str:
    return " ".join(mpi.Get_library_version().strip("\0").splitlines()[0].split())
