"""A sweep's runs as a Slurm job array: the script of `fedmpi submit`, with the run folders of the sweep."""
from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from fedmpi.commands.submit import (
    choose_gpu_settings,
    merge_fields,
    prepare_federations,
    refuse_contradictions,
    warn_of_idle,
    warn_of_untested,
)
from fedmpi.slurm.quoting import LONGEST_JOB_NAME
from fedmpi.slurm.sbatch import require_sbatch, submit_script
from fedmpi.slurm.script import JobScript, render_script
from fedmpi.storage.lock import is_run_alive
from fedmpi.sweeps.job import PlannedRun, make_slug


def submit_runs(runs: list[PlannedRun], dry_run: bool = False, profile: str | None = None, options: Sequence[str] = (),
                *, follow: str, **asked: object) -> str:
    """Submit the runs that are neither finished nor under way.

    Args:
        runs: all runs of the sweep.
        dry_run: submit nothing.
        profile: see `make_array`.
        options: see `make_array`.
        follow: the command that shows all runs of the sweep.
        **asked: see `make_array`.
    Returns:
        What to tell the user, or (`dry_run`) the script.
    Raises:
        BadInput, FedmpiError: if something cannot run, or sbatch refuses it."""
    waiting = [run for run in runs if run.outcome().state != "finished" and not is_run_alive(run.folder)]
    if not waiting:
        return f"all {len(runs)} runs are finished or under way"
    job = make_array(waiting, profile, options, **asked)
    warn_of_untested(profile)
    warn_of_idle(job, [run.settings for run in waiting])
    if dry_run:
        return render_script(job)
    require_sbatch(job)
    prepare_federations(run.settings for run in waiting)
    number, path = submit_script(job)
    return (f"submitted {path} as job {number}: {len(waiting)} of {len(runs)} runs; squeue --jobs {number} and "
            f"{follow} show them")


def make_array(runs: list[PlannedRun], profile: str | None = None, options: Sequence[str] = (),
               **asked: object) -> JobScript:
    """Return the job array of some runs of one job, each on one node. Raises BadInput.

    Args:
        runs: its tasks.
        profile: the name or the path of a site profile.
        options: more for sbatch.
        asked: fields of JobScript; None stands for the profile's value or the default."""
    out = runs[0].folder.parents[2]
    fields = merge_fields(profile, options, asked, {
        "ranks": 1, "server_trains": all(run.settings.server.hosts_clients for run in runs),
        "cpus": max(run.settings.threads for run in runs), "command": (sys.executable, "-m", "fedmpi")})
    job = JobScript(
        str(runs[0].config), array=tuple(tuple(run.overrides) for run in runs),
        folders=tuple(str(run.folder.relative_to(out)) for run in runs), out=str(out),
        accept_changed_code=runs[0].accept_changed_code,
        **fields | {"nodes": 1, "name": make_slug(out.name)[:LONGEST_JOB_NAME]})
    refuse_contradictions(job, asked, ((run.overrides, run.settings) for run in runs))
    return replace(job, settings=choose_gpu_settings(job, [run.settings for run in runs]))
