"""A job's runs as a Slurm job array: the script of `fedmpi submit`, with the run folders of the sweep."""
from __future__ import annotations

import shlex
import sys

from fedmpi.slurm.deadline import parse_time_limit
from fedmpi.slurm.sbatch import guess_mpi, submit_script
from fedmpi.slurm.script import JobScript, render_script
from fedmpi.storage.lock import alive
from fedmpi.sweeps.job import Planned, slug


def submitted(runs: list[Planned], dry_run: bool = False, **asked) -> str:
    """Submit the runs that are neither finished nor under way; return what to tell the user, or (`dry_run`) the script.
    Raises BadInput and FedmpiError."""
    waiting = [run for run in runs if run.outcome().state != "finished" and not alive(run.folder)]
    if not waiting:
        return f"all {len(runs)} runs are finished or under way"
    job = array(waiting, **asked)
    if dry_run:
        return render_script(job)
    number, path = submit_script(job)
    return (f"submitted {path} as job {number}: {len(waiting)} of {len(runs)} runs; squeue --jobs {number} and "
            f"fedmpi summary {shlex.quote(job.out)} show them")


def array(runs: list[Planned], ranks: int, time: str, gpus: int, options: list[str], setup: str,
          cpus: int | None = None, mpi: str | None = None) -> JobScript:
    """Return the job array of some runs of one job. Raises BadInput."""
    parse_time_limit(time, "--time")
    out = runs[0].folder.parents[2]
    return JobScript(
        str(runs[0].config), array=tuple(tuple(run.overrides) for run in runs), name=slug(out.name), nodes=1,
        folders=tuple(str(run.folder.relative_to(out)) for run in runs), out=str(out), ranks=ranks, time=time,
        gpus=gpus, cpus=cpus or max(run.settings.threads for run in runs), options=tuple(options), setup=setup,
        mpi=mpi or guess_mpi(), command=(sys.executable, "-m", "fedmpi"))
