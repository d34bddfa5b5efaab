"""Write a job's report into a folder: table (Markdown, CSV), pictures, and how each run can be repeated."""
from __future__ import annotations

import json
import shlex
from pathlib import Path

from fedmpi.report import plots, tables
from fedmpi.sweep.job import Job, Planned, slug, views

KEPT = ("accuracy_mean", "accuracy_best", "best_round", "accuracy_worst_decile", "f1_mean", "digest", "seconds",
        "ranks", "engine")


def write(job: Job, runs: list[Planned], to: Path, command: str) -> Path:
    """Write all that is known of a job so far; returns the page."""
    to.mkdir(parents=True, exist_ok=True)
    shown = [(view, tables.cells(view, runs)) for view in views(job)]
    pictures = plots.draw(job, runs, to)
    page = to / "README.md"
    page.write_text(f"# {job.title}\n\n`{command}`\n\n"
                    + "".join(f"{measured(view, runs)}\n\n{tables.markdown(view, table)}\n" for view, table in shown)
                    + "".join(f"![{p.stem}]({p.name})\n" for p in pictures))
    for view, table in shown:
        name = "table.csv" if view is shown[0][0] else f"table-{slug(view.measure)}.csv"
        (to / name).write_text(tables.as_csv(view, table))
    (to / "runs.json").write_text(json.dumps([repeatable(run) for run in runs], indent=1) + "\n")
    return page


def measured(job: Job, runs: list[Planned]) -> str:
    """Say what the numbers are, and how far the runs came."""
    rounds = sorted({run.outcome().round for run in runs})
    reached = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    percent = "Percent: " if tables.unit(job.measure) == 100 else ""
    return (f"{percent}{job.measure.replace('_', ' ')}, mean +- standard deviation over {len(job.seeds)} seed"
            f"{'s' * (len(job.seeds) > 1)}; {reached} rounds.")


def repeatable(run: Planned) -> dict:
    """Return a run's command and what it gave."""
    found = run.outcome()
    result = found.result or {}
    return {"row": run.row, "column": run.column, "seed": run.seed, "state": found.state, "rounds": found.round,
            "command": "fedmpi " + shlex.join(["run", run.config.name, *run.overrides]),
            **{k: result[k] for k in KEPT if k in result}}
