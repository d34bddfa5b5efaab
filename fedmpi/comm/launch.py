"""How this process was started, as the launchers' environment variables tell, and launches that cannot work."""
from __future__ import annotations

import os

from fedmpi.errors import BadInput


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
