"""A job's runs as a Slurm job array: the script of `fedmpi submit`, with the run folders of the sweep."""
from __future__ import annotations

import shlex
import sys

from fedmpi.slurm import submit
from fedmpi.slurm.deadline import seconds_of
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
        return submit.script(job)
    number, path = submit.submit_script(job)
    return (f"submitted {path} as job {number}: {len(waiting)} of {len(runs)} runs; squeue --jobs {number} and "
            f"fedmpi summary {shlex.quote(job.out)} show them")


def array(runs: list[Planned], ranks: int, time: str, gpus: int, options: list[str], setup: str,
          cpus: int | None = None, mpi: str | None = None) -> submit.JobScript:
    """Return the job array of some runs of one job. Raises BadInput."""
    seconds_of(time, "--time")
    out = runs[0].folder.parents[2]
    return submit.JobScript(
        str(runs[0].config), array=tuple(tuple(run.overrides) for run in runs), name=slug(out.name), nodes=1,
        folders=tuple(str(run.folder.relative_to(out)) for run in runs), out=str(out), ranks=ranks, time=time,
        gpus=gpus, cpus=cpus or max(run.settings.threads for run in runs), options=tuple(options), setup=setup,
        mpi=mpi or submit.likely_mpi(), command=(sys.executable, "-m", "fedmpi"))
