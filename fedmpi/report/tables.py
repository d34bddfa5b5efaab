"""A job's results as a table: mean and spread over seeds, the published numbers beside them."""
from __future__ import annotations

import csv
import io
import statistics
from typing import NamedTuple

from fedmpi.sweep.job import Job, Planned


class Cell(NamedTuple):
    """What is known of one row and column; accuracies and F1 in percent."""
    values: list[float]              # of the finished seeds
    missing: int                     # seeds that are not finished
    published: tuple[float, float | None] | None      # mean and spread

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values) if self.values else float("nan")

    @property
    def spread(self) -> float | None:
        """Return the standard deviation over seeds; None for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float:
        return self.mean - self.published[0] if self.published else float("nan")


def cells(job: Job, runs: list[Planned]) -> dict[tuple[str, str], Cell]:
    """Return the cell of every (row, column). Raises BadInput where a folder holds another run."""
    found = {(row, column): [] for row in job.rows for column in job.columns}
    for run in runs:
        found[run.row, run.column].append(run.outcome().result)
    table = {}
    for (row, column), results in found.items():
        values = [unit(job.measure) * result[job.measure] for result in results if result and job.measure in result]
        table[row, column] = Cell(values, results.count(None),
                                  as_pair(job.published.get(row, {}).get(column)))
    return table


def unit(measure: str) -> int:
    """Return what a measure is multiplied by: shares are shown in percent."""
    return 100 if measure.startswith(("accuracy", "f1")) else 1


def as_pair(value) -> tuple[float, float | None] | None:
    if value is None:
        return None
    return (float(value[0]), float(value[1])) if isinstance(value, list) else (float(value), None)


def number(mean: float, spread: float | None) -> str:
    if mean != mean:
        return "-"
    return f"{mean:.2f}" + (f" +- {spread:.2f}" if spread is not None else "")


def markdown(job: Job, table: dict) -> str:
    """Return the table as Markdown: the best of each column in bold, then the agreement of the order of rows."""
    columns = list(job.columns)
    published = {c for c in columns if any(table[r, c].published for r in job.rows)}
    heads = [h for c in columns for h in ([c, "published", "difference"] if c in published else [c])]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(heads)]
    wanted = max if unit(job.measure) == 100 else min      # all others are costs
    best = {c: wanted((table[r, c].mean for r in job.rows if table[r, c].values), default=None) for c in columns}
    for row in job.rows:
        line = []
        for c in columns:
            cell = table[row, c]
            text = number(cell.mean, cell.spread)
            line.append((f"**{text}**" if cell.mean == best[c] else text) + (" *" if cell.missing else ""))
            if c in published:
                line += [number(*cell.published) if cell.published else "-",
                         "-" if cell.difference != cell.difference else f"{cell.difference:+.2f}"]
        lines.append(f"| {row} | " + " | ".join(line) + " |")
    if any(cell.missing for cell in table.values()):
        lines += ["", "\\* not all seeds are finished"]
    lines += [text for c in columns if (text := agreement(job, table, c))]
    return "\n".join(lines) + "\n"


def agreement(job: Job, table: dict, column: str) -> str:
    """Say how well the order of rows agrees with the published one: Kendall's tau (1: the same, -1: reversed)."""
    both = [(table[r, column].mean, table[r, column].published[0]) for r in job.rows
            if table[r, column].values and table[r, column].published]
    if len(both) < 3:
        return ""
    from scipy.stats import kendalltau
    tau = kendalltau(*zip(*both, strict=True)).statistic
    return f"\n{column}: order of {len(both)} rows against the published one, Kendall's tau {tau:.2f}"


def as_csv(job: Job, table: dict) -> str:
    """Return one line per row and column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "column", "mean", "std", "seeds", "published", "published_std"])
    for (row, column), cell in table.items():
        writer.writerow([row, column, "" if cell.mean != cell.mean else f"{cell.mean:.4f}",
                         "" if cell.spread is None else f"{cell.spread:.4f}", len(cell.values),
                         *(("" if v is None else v) for v in cell.published or (None, None))])
    return text.getvalue()
