"""The MPI world: the collectives of transport.py over mpi4py, and how a job ends. The only file that imports mpi4py.

Waiting ranks do not spin: if a rank may wait for work (an order's header, a sum), a tiny non-blocking call is polled
with short sleeps first, so that the rank leaves its core to one that works. (Blocking MPI calls burn a core in most
libraries.) If a node has more ranks than cores, the library is told to yield inside its calls, too."""
from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from types import ModuleType

import numpy as np

from fedmpi.comm.departure import Departures
from fedmpi.comm.ending import LOOK_S, Ending
from fedmpi.comm.gpu_staging import is_cuda_aware, wait_for_gpu
from fedmpi.comm.launcher import drain, refuse_lonely, shares_cores, was_started_by_srun
from fedmpi.comm.transport import Buffer, Request, Solo, Transport, mark_collective
from fedmpi.errors import FAILED
from fedmpi.text import print_failure

# Elements per MPI call: counts stay far below 2^31, and the scratch memory of a sum stays small.
PIECE_ELEMENTS = 1 << 22
# Up to so many ranks add up among themselves, see World.reduce.
MAX_RANKS_FOR_HALVING = 8
# Tag of the message in which a worker tells rank 0 why it failed.
FAILURE_TAG = 7001
# Poll so long before the first sleep; then sleep between these two.
FIRST_SLEEP_AFTER_S = 2e-4
SHORTEST_SLEEP_S, LONGEST_SLEEP_S = 1e-4, 2e-3
# Sleep 1/16 of the time waited so far, within these bounds: after 2 ms a message is noticed at most 6 % late.
SLEEP_DIVISOR = 16
# Rank 0 leaves srun so long after the workers if its exit code is not 0.
LEAVE_AFTER_WORKERS_S = .5
# MPI must take a worker's message of failure within so long.
SEND_FAILURE_S = 2.
# Rank 0 has so long to begin to end the job, on a crowded machine too, before the worker ends it.
END_BY_RANK_0_S = 60.
MAX_FAILURE_BYTES = 60_000


class World(Transport):
    """An MPI communicator seen as one server (rank 0) and its workers."""

    def __init__(self, mpi: ModuleType):
        super().__init__()
        self.mpi, self.comm = mpi, mpi.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.library, self.cuda_aware = read_library_name(mpi), is_cuda_aware(mpi)
        self.thread_level = ("single", "funneled", "serialized", "multiple")[mpi.Query_thread()]
        local = self.comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.local_rank = local.rank
        local.Free()
        self.failing, self.departures, self.ending = threading.Lock(), Departures(mpi), Ending(mpi)
        # Memory for a part of a sum that another rank sends, kept from sum to sum.
        self._scratch = np.empty(0, np.uint8)

    @mark_collective
    def broadcast(self, buffer: Buffer) -> Buffer:
        # The barrier is polled, so that rank 0 hears of a worker that failed instead of blocking.
        self.barrier()
        flat = buffer.reshape(-1)
        wait_for_gpu(flat)
        for start in range(0, len(flat), PIECE_ELEMENTS):
            self.comm.Bcast(flat[start:start + PIECE_ELEMENTS], 0)
        self._count_bytes(buffer.nbytes, from_root=True)
        return buffer

    @mark_collective
    def reduce(self, buffer: Buffer, root: int = 0) -> Buffer:
        """Return the sum over ranks at rank `root`; the buffers of other ranks are used up.

        A few ranks send to each other, half of them in every step. (MPICH's Reduce of 8 MB took 25-40 ms with 3 ranks
        on 2 cores, and this takes 3-9.)"""
        self.barrier()
        flat = buffer.reshape(-1)
        wait_for_gpu(flat)
        for start in range(0, len(flat), PIECE_ELEMENTS):
            part = flat[start:start + PIECE_ELEMENTS]
            if self.size <= MAX_RANKS_FOR_HALVING:
                self._reduce_by_halving(part, root)
            else:
                self.comm.Reduce(self.mpi.IN_PLACE if self.rank == root else part, part, self.mpi.SUM, root)
        if root == 0:
            self._count_bytes(buffer.nbytes, from_root=False)
        elif self.rank == 0:
            # Rank 0 adds its part as every rank does; only the root receives all of them.
            self.sent += buffer.nbytes
        elif self.rank == root:
            self.received += buffer.nbytes
        return buffer

    def _reduce_by_halving(self, part: Buffer, root: int) -> None:
        """Add all ranks' parts at `root`: in step 1, 2, 4, ... ranks that far apart join, and one of the two is done.
        """
        place, step = (self.rank - root) % self.size, 1
        while step < self.size:
            if place & step:
                self.comm.Send(part, (self.rank - step) % self.size)
                return
            if place + step < self.size:
                other = self._scratch_like(part)
                self.comm.Recv(other, (self.rank + step) % self.size)
                part += other
                wait_for_gpu(part)
            step *= 2

    def _scratch_like(self, part: Buffer) -> Buffer:
        """Return memory of a part's size and type: scratch memory of this world, or a new tensor beside a tensor."""
        if not isinstance(part, np.ndarray):
            return part.new_empty(part.shape)
        if self._scratch.nbytes < part.nbytes:
            self._scratch = np.empty(part.nbytes, np.uint8)
        return self._scratch[:part.nbytes].view(part.dtype)

    @mark_collective
    def gather(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray | None:
        self.barrier()
        rows = np.ascontiguousarray(rows)
        width = int(np.prod(rows.shape[1:], dtype=np.int64))
        if self.rank:
            self._send_pieces(rows.reshape(-1), 0)
            self._count_bytes(rows.nbytes, from_root=False)
            return None
        out = np.empty((int(counts.sum()), *rows.shape[1:]), rows.dtype)
        flat, begin = out.reshape(-1), 0
        for rank, count in enumerate(counts * width):
            part = flat[begin:begin + count]
            if rank == 0:
                part[:] = rows.reshape(-1)
            else:
                self._recv_pieces(part, rank)
            begin += count
        self.received += out.nbytes - rows.nbytes
        return out

    @mark_collective
    def send(self, buffer: np.ndarray, rank: int) -> None:
        self._send_pieces(buffer, rank)

    @mark_collective
    def recv(self, buffer: np.ndarray, rank: int) -> np.ndarray:
        self._recv_pieces(buffer, rank)
        return buffer

    def _send_pieces(self, flat: np.ndarray, rank: int) -> None:
        for start in range(0, flat.size, PIECE_ELEMENTS):
            self.comm.Send(flat[start:start + PIECE_ELEMENTS], rank)

    def _recv_pieces(self, flat: np.ndarray, rank: int) -> None:
        for start in range(0, flat.size, PIECE_ELEMENTS):
            self.comm.Recv(flat[start:start + PIECE_ELEMENTS], rank)

    @mark_collective
    def alltoall(self, parts: list[np.ndarray], sizes: np.ndarray) -> np.ndarray:
        self.barrier()
        out = np.concatenate([part.reshape(-1) for part in parts])
        got = np.empty(int(sizes.sum()), out.dtype)
        self.comm.Alltoallv([out, [part.size for part in parts]], [got, sizes.tolist()])
        if self.rank == 0:
            self.sent += out.nbytes - parts[0].nbytes
            self.received += got.nbytes - parts[0].nbytes
        return got

    @mark_collective
    def broadcast_header(self, header: np.ndarray) -> None:
        self._wait_for(self.comm.Ibcast(header, 0))

    def barrier(self) -> None:
        self._wait_for(self.comm.Ibarrier())
        # All ranks are here, so nobody waits any more for what they did before.
        self.while_waiting = None

    def _wait_for(self, request: Request) -> None:
        """Poll a request until it is done, with sleeps; rank 0 ends the job if a worker failed meanwhile, and every
        rank if another one has left the program. Raises what `while_waiting` raises."""
        begin = time.perf_counter()
        while not request.Test():
            waited = time.perf_counter() - begin
            if waited > FIRST_SLEEP_AFTER_S:
                time.sleep(min(max(waited / SLEEP_DIVISOR, SHORTEST_SLEEP_S), LONGEST_SLEEP_S))
            self.end_if_worker_failed()
            if self.while_waiting:
                self.while_waiting()
            if why := self.departures.find_why_to_end():
                self.fail(why)

    def end_if_worker_failed(self) -> None:
        """End the job if rank 0 finds a worker's message of failure. It looks while it waits, and its heartbeat looks
        while it works; if both find one, either of them ends the job."""
        if self.rank or not self.comm.Iprobe(tag=FAILURE_TAG):
            return
        status = self.mpi.Status()
        self.comm.Probe(tag=FAILURE_TAG, status=status)
        text = np.empty(status.Get_count(self.mpi.BYTE), np.uint8)
        self.comm.Recv(text, status.source, FAILURE_TAG)
        self.fail(text[1:].tobytes().decode(errors="replace"), int(text[0]))

    def fail(self, message: str, code: int = FAILED, tell: bool = True) -> None:
        """End the whole job now. Never returns.

        Rank 0 prints the message, once. A worker sends it to rank 0 first, unless `tell` is False because rank 0 does
        not answer. Nothing that fails on the way keeps the job from its end."""
        if not self.failing.acquire(blocking=False):
            # Another thread is ending the job.
            threading.Event().wait()
        try:
            if self.rank == 0:
                with suppress(Exception):
                    self.ending.tell_workers()
            elif tell and self._send_failure(message, code):
                # Rank 0 ends the job; if it cannot, this rank does.
                self.ending.wait(END_BY_RANK_0_S)
            if self.on_failure:
                with suppress(Exception):
                    message = self.on_failure(message)
            print_failure(message)
            drain(sys.stdout, sys.stderr)
        finally:
            with suppress(Exception):
                self.comm.Abort(code)
            # MPI_Abort returns in some libraries.
            os._exit(code)

    def _send_failure(self, message: str, code: int) -> bool:
        """Send rank 0 why this rank failed; return whether MPI took it in time, or rank 0 ends the job anyway."""
        text = np.frombuffer(bytes([code]) + message.encode(errors="backslashreplace")[:MAX_FAILURE_BYTES], np.uint8)
        request = self.comm.Isend(text, 0, FAILURE_TAG)
        for _ in range(round(SEND_FAILURE_S / LOOK_S)):
            if request.Test() or self.ending.has_begun():
                return True
            time.sleep(LOOK_S)
        return False

    def _count_bytes(self, nbytes: int, from_root: bool) -> None:
        if (self.rank == 0) == from_root:
            self.sent += nbytes * (self.size - 1 if from_root else 1)
        else:
            self.received += nbytes

    def leave(self) -> None:
        if not self.mpi.Is_finalized():
            self.departures.announce()
            self._wait_for(self.departures)

    def close(self, code: int = 0) -> None:
        """Leave MPI before this process exits with `code`.

        Under srun the workers leave at once and with code 0, and rank 0 after them: srun --kill-on-bad-exit takes the
        first code other than 0 for a crash, kills the rest and reports that."""
        self.barrier()
        if self.heartbeat:
            self.heartbeat.close()
        self.mpi.Finalize()
        if code and was_started_by_srun():
            if self.rank:
                drain(sys.stdout, sys.stderr)
                os._exit(0)
            time.sleep(LEAVE_AFTER_WORKERS_S)


def open_world() -> Transport:
    """Join the MPI world; return Solo if this process is alone in it, or there is no MPI library. Raises BadInput for a
    launch that cannot work."""
    if shares_cores():
        # MPICH, then Open MPI
        os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    # UCX, inside MPICH and Open MPI, takes SIGHUP for a wish to see its debug log, in place of our handler.
    os.environ.setdefault("UCX_DEBUG_SIGNO", "0")
    world: Transport
    try:
        import mpi4py
        # Below "multiple" MPICH 5 moves intra-node reductions through small cells and spins: 7 MB took 13 s with
        # 3 ranks on 2 cores, and take 20 ms at this level.
        mpi4py.rc.thread_level = "multiple"
        from mpi4py import MPI
        world = World(MPI) if MPI.COMM_WORLD.size > 1 else Solo()
        if world.size == 1:
            world.library, world.cuda_aware = read_library_name(MPI), is_cuda_aware(MPI)
    except (ImportError, RuntimeError) as error:
        world = Solo()
        world.library = f"none ({' '.join(str(error).split())[:120]})"
    refuse_lonely(world)
    return world


def read_library_name(mpi: ModuleType) -> str:
    """Return the first line of the MPI library's version text."""
    return " ".join(mpi.Get_library_version().strip("\0").splitlines()[0].split())
