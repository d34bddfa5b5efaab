"""Hand a job script to Slurm."""
from __future__ import annotations

import os
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedmpi.errors import BadInput, FedmpiError
from fedmpi.slurm.job import make_environment_of_new_job
from fedmpi.slurm.script import JobScript, render_script


def guess_mpi() -> str:
    """Return srun's --mpi for the MPI library that was installed with this Python; pmi2 if it comes from elsewhere."""
    try:
        version("openmpi")
    except PackageNotFoundError:
        return "pmi2"
    return "pmix"


def submit_script(job: JobScript) -> tuple[str, Path]:
    """Write the script under runs/ and submit it, as many times as its chain has jobs.

    Returns:
        The number of the job, or the numbers of a chain's jobs separated by commas, and the script's path.
    Raises:
        BadInput: if there is no sbatch here, or the script cannot be written.
        FedmpiError: if sbatch refuses the job."""
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
    numbers = [call_sbatch([path, *(["", str(job.chain - 1)] if job.chain else [])], [])]
    # Each later job of a chain waits for the one before, and is told which one was the first.
    for left in reversed(range(job.chain - 1)):
        after = f"--dependency=afterany:{numbers[-1]}"
        numbers.append(call_sbatch([after, path, numbers[0], str(left)], numbers))
    return ",".join(numbers), path


def call_sbatch(words: list[str | Path], submitted: list[str]) -> str:
    """Run sbatch and return the number of the job. Raises FedmpiError, which names what was `submitted` before."""
    words = ["sbatch", "--parsable", *words]
    done = subprocess.run(words, env=make_environment_of_new_job(), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True)
    if done.returncode:
        before = f" (submitted before: scancel {' '.join(submitted)})" if submitted else ""
        path = next(word for word in words if isinstance(word, Path))
        raise FedmpiError(f"sbatch refused {path}: {' '.join(done.stderr.split())}{before}")
    return done.stdout.strip().partition(";")[0]
