"""What `fedmpi report` writes, by what it is given: a job, folders of runs, or the book of a day with a GPU."""
from __future__ import annotations

import shlex
from pathlib import Path

from fedmpi.report import gpu_day, gpu_tables, results, write
from fedmpi.shipped import is_job_file


def report_paths(paths: list[str], scale: str | None, out: str | None, to: str | None, for_print: bool) -> Path:
    """Write the report of a job file, of folders of runs or of gpu_day.json; return its page. Raises BadInput.

    Args:
        scale: a smaller variant of the job.
        out: the folder of the job's runs.
        to: the folder to write to.
        for_print: figures for papers, too."""
    folders = [*map(Path, dict.fromkeys(paths))]
    if any(gpu_day.is_book(path) for path in map(Path, paths)):
        return gpu_tables.write_day(folders, Path(to or "report"))
    if not is_job_file(paths):
        return write.write_report(results.collect_folder_results(folders), Path(to or "report"), for_print)
    from fedmpi.sweeps.job import plan_job
    job, runs = plan_job(paths[0], scale, out)
    command = shlex.join(["fedmpi", "sweep", paths[0], *(["--scale", scale] if scale else []),
                          *(["--out", out] if out else [])])
    folder = Path(to) if to else runs[0].folder.parents[2] / "report"
    return write.write_report(results.collect_job_results(job, runs, command), folder, for_print)
