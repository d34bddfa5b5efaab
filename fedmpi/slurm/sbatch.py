"""Hand a job script to Slurm."""
from __future__ import annotations

import os
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedmpi.errors import BadInput, FedmpiError
from fedmpi.slurm.script import JobScript, render_script


def guess_mpi() -> str:
    """Return the --mpi for the MPI library that was installed with this Python; pmi2 where it comes from elsewhere."""
    try:
        version("openmpi")
    except PackageNotFoundError:
        return "pmi2"
    return "pmix"


def submit_script(job: JobScript) -> tuple[str, Path]:
    """Write the script under runs/ and submit it; return the job's id and the script's path."""
    if shutil.which("sbatch") is None:
        raise BadInput("sbatch is not on this machine: submit from a login node of the cluster; --dry-run prints the "
                       "script")
    path = Path("runs") / f"{job.name}.sbatch"
    try:
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(render_script(job))
        os.replace(part, path)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}; go where you may write") from None
    done = subprocess.run(["sbatch", "--parsable", str(path)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise FedmpiError(f"sbatch refused {path}: {' '.join(done.stderr.split())}")
    return done.stdout.strip().partition(";")[0], path
