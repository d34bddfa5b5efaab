"""How this process was started, as the launchers' environment variables tell, launches that cannot work, and
what a launcher needs to pass on our last words."""
from __future__ import annotations

import os
import stat
import time
from contextlib import suppress

from fedmpi.errors import BadInput

DRAIN = 3         # seconds that an abort waits for the launcher to read what was printed
GLANCE = 1e-4     # seconds between two looks whether it has


def speaks() -> bool:
    """Say whether this process should report a refused launch: the launcher's first one, as its environment tells."""
    ranks = [os.environ.get(v) for v in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")]
    return next((rank for rank in ranks if rank is not None), "0") == "0"


def shares_cores() -> bool:
    """Say whether this node has more ranks than cores for them, as far as the launcher's environment tells."""
    local = next((os.environ[v] for v in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
                  if os.environ.get(v, "").isdigit()), "1")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    bound = cores == 1 and (os.cpu_count() or 1) > 1      # to a core of its own: nothing is shared
    return int(local) > cores and not bound


def refuse_lonely(world) -> None:
    """Refuse processes that were started together but do not see each other: each would be rank 0 of 1."""
    if world.size > 1:
        return
    for variable, launcher in (("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"), ("PMI_SIZE", "MPICH's mpiexec"),
                               ("SLURM_STEP_NUM_TASKS", "srun")):
        started = os.environ.get(variable, "1")
        if started.isdigit() and int(started) > 1 and not inside_other_launcher(variable):
            raise BadInput(
                f"{launcher} started {started} processes, but this one is alone in its MPI world (library: "
                f"{world.library}): launcher and MPI library do not match. Use the mpiexec of that library, or under "
                "Slurm the --mpi that it speaks (MPICH: srun --mpi=pmi2; Open MPI: srun --mpi=pmix).")


def inside_other_launcher(variable: str) -> bool:
    """Under mpiexec inside a Slurm job, SLURM_STEP_NUM_TASKS describes the launcher's own step, not us."""
    return variable == "SLURM_STEP_NUM_TASKS" and ("PMI_SIZE" in os.environ and "HYDI_CONTROL_FD" in os.environ
                                                   or "OMPI_COMM_WORLD_SIZE" in os.environ)


def drain(*streams) -> None:
    """Wait until the launcher has read what was printed: some launchers drop what still lies in the pipe at an abort.

    A launcher that does not read within DRAIN seconds is not waited for."""
    for stream in streams:
        with suppress(OSError, ValueError, ImportError):      # closed, not a file, no such system call
            import fcntl
            import termios
            stream.flush()
            until = time.perf_counter() + DRAIN
            while stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode) and time.perf_counter() < until:
                if not any(fcntl.ioctl(stream.fileno(), termios.FIONREAD, bytes(4))):
                    break
                time.sleep(GLANCE)
