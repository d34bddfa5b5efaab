"""How this process was started (launchers say so in environment variables), launches that cannot work, and what a
launcher needs to pass on the last message of a process."""
from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import IO

from fedmpi.comm.transport import Transport
from fedmpi.errors import BadInput
from fedmpi.slurm.job import SlurmJob, read_number

# An abort waits so long for the launcher to read what was printed, and looks that often whether it did.
DRAIN_S = 3
DRAIN_LOOK_S = 1e-4


def reports_refusal() -> bool:
    """Tell whether this process should report a refused launch: only the launcher's first one does."""
    ranks = (read_number(os.environ, "OMPI_COMM_WORLD_RANK"), read_number(os.environ, "PMI_RANK"),
             SlurmJob.from_env().rank)
    return next((rank for rank in ranks if rank is not None), 0) == 0


def list_cores() -> list[int]:
    """Return the cores that this process may run on; where the system does not tell, as on macOS, all cores."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def shares_cores() -> bool:
    """Tell whether this node has more ranks than cores for them, as far as the launcher's variables say."""
    told = (read_number(os.environ, "MPI_LOCALNRANKS"), read_number(os.environ, "OMPI_COMM_WORLD_LOCAL_SIZE"),
            SlurmJob.from_env().ranks_per_node)
    local = next((ranks for ranks in told if ranks is not None), 1)
    cores = len(list_cores())
    # A rank that is bound to a core of its own shares nothing.
    bound = cores == 1 and (os.cpu_count() or 1) > 1
    return local > cores and not bound


def refuse_lonely(world: Transport) -> None:
    """Refuse processes that were started together but do not see each other: each would be rank 0 of 1.

    Raises:
        BadInput: with the launcher, the library and a remedy."""
    if world.size > 1:
        return
    launchers = [("Open MPI's mpirun", read_number(os.environ, "OMPI_COMM_WORLD_SIZE")),
                 ("MPICH's mpiexec", read_number(os.environ, "PMI_SIZE"))]
    if was_started_by_srun():
        launchers.append(("srun", SlurmJob.from_env().ranks_in_step))
    for launcher, started in launchers:
        if started is not None and started > 1:
            raise BadInput(
                f"{launcher} started {started} processes, but this one is alone in its MPI world (library: "
                f"{world.library}): launcher and MPI library do not match. Use the mpiexec of that library, or under "
                "Slurm the --mpi that it speaks (MPICH: srun --mpi=pmi2; Open MPI: srun --mpi=pmix).")


def was_started_by_srun() -> bool:
    """Tell whether srun itself started this rank. Inside a Slurm job mpiexec starts its own daemons by srun, and
    Slurm's variables then describe that step, not the ranks."""
    # Daemons that srun started do not hand HYDI_CONTROL_FD on.
    by_mpich = "PMI_SIZE" in os.environ and "MPI_LOCALNRANKS" in os.environ
    by_open_mpi = "OMPI_COMM_WORLD_SIZE" in os.environ
    return SlurmJob.from_env().ranks_in_step is not None and not by_mpich and not by_open_mpi


def is_inside_launcher() -> bool:
    """Tell whether a launcher of MPI jobs started this process, as far as its variables say."""
    by_variable = any(name in os.environ for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"))
    return by_variable or SlurmJob.from_env().ranks_in_step is not None


def drain(*streams: IO[str] | IO[bytes]) -> None:
    """Wait until the launcher has read what was printed: some launchers drop what lies in the pipe at an abort.

    A launcher that does not read within DRAIN_S seconds is not waited for."""
    for stream in streams:
        # The stream may be closed or no file, or there may be no such system call.
        with suppress(OSError, ValueError, ImportError):
            import fcntl
            import termios
            stream.flush()
            until = time.perf_counter() + DRAIN_S
            while stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode) and time.perf_counter() < until:
                if not any(fcntl.ioctl(stream.fileno(), termios.FIONREAD, bytes(4))):
                    break
                time.sleep(DRAIN_LOOK_S)
