"""Hand a job script to Slurm."""
from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import uuid
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedmpi.errors import BadInput, FedmpiError
from fedmpi.slurm.job import make_environment_of_new_job
from fedmpi.slurm.quoting import shorten_text
from fedmpi.slurm.script import JobScript, render_script

# What --parsable prints: the number, and the cluster if there are several.
JOB_NUMBER = re.compile(r"\d+(?:;\S+)?", re.ASCII)


def guess_mpi() -> str:
    """Return srun's --mpi for the MPI library that was installed with this Python; pmi2 if it comes from elsewhere."""
    try:
        version("openmpi")
    except PackageNotFoundError:
        return "pmi2"
    return "pmix"


def require_sbatch(job: JobScript) -> None:
    """Raise BadInput if jobs cannot be submitted from here: there is no sbatch, or the output would be lost."""
    if shutil.which("sbatch") is None:
        raise BadInput("sbatch is not on this machine: submit from a login node of the cluster; --dry-run prints the "
                       "script")
    if "%" in os.getcwd() and not any(option.startswith(("--output", "-o")) for option in job.options):
        raise BadInput(f"{os.getcwd()}: Slurm would read the % in this path as a placeholder, and the job's output "
                       "would be lost; submit from a folder without %, or give --option=--output=/PATH/%x-%j.out")


def submit_script(job: JobScript) -> tuple[str, Path]:
    """Write the script under runs/ and submit it, as many times as its chain has jobs.

    Returns:
        The number of the job, or the numbers of a chain's jobs separated by commas, and the script's path.
    Raises:
        BadInput: if there is no sbatch here, or the script cannot be written.
        FedmpiError: if sbatch refuses the job, or does not tell its number."""
    require_sbatch(job)
    path = Path("runs") / f"{job.name}.sbatch"
    # Another call may submit a job of this name at the same time: sbatch reads a file that is of this call alone.
    mine = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        path.parent.mkdir(exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        mine.write_text(render_script(job))
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}; go where you may write") from None
    try:
        numbers = [call_sbatch(path, [mine, *(["", str(job.chain - 1)] if job.chain else [])], [])]
        # Each later job of a chain waits for the one before, and is told which one was the first.
        for left in reversed(range(job.chain - 1)):
            after = f"--dependency=afterany:{numbers[-1]}"
            numbers.append(call_sbatch(path, [after, mine, numbers[0], str(left)], numbers))
    finally:
        os.replace(mine, path)
    return ",".join(numbers), path


def call_sbatch(script: Path, words: list[str | Path], submitted: list[str]) -> str:
    """Run sbatch and return the number of the job.

    Args:
        script: the script's path, for messages.
        words: what sbatch is given.
        submitted: the numbers of the jobs before this one, for messages.
    Raises:
        FedmpiError: if sbatch refuses the job, or does not tell its number."""
    done = subprocess.run(["sbatch", "--parsable", *words], env=make_environment_of_new_job(), text=True,
                          stdin=subprocess.DEVNULL, capture_output=True)
    before = f" (submitted before: scancel {' '.join(submitted)})" if submitted else ""
    if done.returncode:
        raise FedmpiError(f"sbatch refused {script}: {' '.join(done.stderr.split())}{before}")
    # A site may print lines of its own.
    numbers = [line for line in map(str.strip, done.stdout.splitlines()) if JOB_NUMBER.fullmatch(line)]
    if not numbers:
        said = " ".join(f"{done.stdout} {done.stderr}".split()) or "nothing"
        raise FedmpiError(f"sbatch did not tell the number of a job for {script}: it said {shorten_text(said)!r}; see "
                          f"squeue --me before you submit again{before}")
    return numbers[-1].partition(";")[0]
