"""The runs of a job array or a sweep in a table. FOLDER.txt, beside the run folder, holds what its job printed."""
from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from fedmpi.errors import BadInput
from fedmpi.storage import run_files, run_status
from fedmpi.storage.job_log import is_job_log
from fedmpi.text import format_columns

# text files that no job has printed
OTHER_LOGS = (run_files.LOG, "summary.txt")


def summarise_runs(folder: str | Path) -> str:
    """Return a table of the runs below a folder, and a line that counts them. Raises BadInput if there is none."""
    logs = sorted((path for path in Path(folder).rglob("*.txt") if path.name not in OTHER_LOGS
                   and (is_job_log(path) or path.with_suffix("").is_dir())), key=make_natural_key)
    if not logs:
        raise BadInput(f"{folder}: there is no run of a job array or a sweep here that has started; give the folder "
                       "that holds its runs and what they printed: 0.txt, 1.txt, ... (squeue shows those that still "
                       "wait, and `fedmpi status JOB` all runs of a sweep)")
    rows: list[list[object]] = []
    counts: Counter[str] = Counter()
    for path in logs:
        # Its rounds are dropped here: those of a thousand runs would fill the memory of a job.
        found = run_status.read_outcome(path.with_suffix(""))
        rows.append([path.relative_to(folder).with_suffix(""), found.state, found.starts, found.settings, str(found)])
        counts[found.state] += 1
    heads = ["run", "state", "starts", "settings", "result, or what it said last"]
    total = ", ".join(f"{counts[state]} {state}" for state in run_status.STATES if counts[state])
    return f"{format_columns(heads, rows, right=('starts',))}\n{total}"


def make_natural_key(path: Path) -> list[tuple[int, int, str]]:
    """Return a key that sorts 2.txt before 10.txt."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", str(path))]
