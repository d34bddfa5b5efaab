"""What became of the runs of a job array or a sweep, in a table: each FOLDER.txt is what the job of FOLDER printed."""
from __future__ import annotations

import re
from pathlib import Path

from fedmpi.errors import BadInput
from fedmpi.storage import run_status
from fedmpi.text import format_columns

OTHER_LOGS = ("log.txt", "summary.txt")      # are no job's


def summarise_runs(folder: str | Path) -> str:
    """Return a table of the runs, and a line that counts them. Raises BadInput where there is none."""
    logs = sorted((path for path in Path(folder).rglob("*.txt") if path.name not in OTHER_LOGS), key=natural)
    if not logs:
        raise BadInput(f"{folder}: there is no run of a job array or a sweep here; give the folder that holds its runs "
                       "and what they printed: 0.txt, 1.txt, ...")
    found = [run_status.outcome_of(path.with_suffix("")) for path in logs]
    rows = [[path.relative_to(folder).with_suffix(""), o.state, o.starts, o.settings, o]
            for path, o in zip(logs, found, strict=True)]
    counts = {state: sum(o.state == state for o in found) for state in ("finished", "failed", "unfinished", "waiting")}
    return (
        format_columns(["run", "state", "starts", "settings", "result, or what it said last"], rows, right=("starts",))
        + "\n"
        + ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    )


def natural(path: Path) -> list:
    """Return a key that sorts 2.txt before 10.txt."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", str(path))]
