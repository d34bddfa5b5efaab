"""Pictures of a job's runs: accuracy by round, and sizes of clusters by round. Read in print and without colours."""
from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmpi import outcome
from fedmpi.sweep.job import Job, Planned, slug

# colour-blind-safe (Okabe and Ito, 2008); lines differ by dash and marker too
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
DASHES = ("-", "--", "-.", ":")
MARKERS = "osv^Dx+*"
DPI = 110


def pyplot():
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    return pyplot


def draw(job: Job, runs: list[Planned], to: Path) -> list[Path]:
    """Draw all that the runs have so far into a folder; returns the pictures."""
    pictures = [curves(job, [r for r in runs if r.column == c], to / f"accuracy-{slug(c)}.png") for c in job.columns]
    pictures += [clusters(run, to / f"clusters-{slug(run.row)}-{slug(run.column)}.png") for run in runs
                 if run.seed == job.seeds[0]]
    return [p for p in pictures if p]


def curves(job: Job, runs: list[Planned], path: Path) -> Path | None:
    """Draw mean accuracy by round of every row, a band of one standard deviation where there are several seeds."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    drawn = 0
    for i, row in enumerate(job.rows):
        series = [outcome.metrics(run.folder) for run in runs if run.row == row]
        rounds, values = common([s for s in series if s])
        if len(rounds):
            mean = 100 * values.mean(0)
            style = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // 2 % len(DASHES)]}
            axes.plot(rounds, mean, label=row, marker=MARKERS[i % len(MARKERS)], markersize=4,
                      markevery=max(1, len(rounds) // 8), **style)
            if len(values) > 1:
                spread = 100 * values.std(0, ddof=1)
                axes.fill_between(rounds, mean - spread, mean + spread, color=style["color"], alpha=.2, linewidth=0)
            drawn += 1
    if drawn:
        axes.set(xlabel="round", ylabel="test accuracy, mean over clients (%)",
                 title=f"{job.title}: {runs[0].column}" if len(job.columns) > 1 else job.title)
        axes.legend(frameon=False, fontsize=8, ncols=2 if drawn > 6 else 1)
        axes.grid(alpha=.3)
        figure.savefig(path, dpi=DPI)
    plt.close(figure)
    return path if drawn else None


def common(series: list[list[dict]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds that all runs evaluated, and their accuracies (runs, rounds)."""
    if not series:
        return np.empty(0), np.empty((0, 0))
    rounds = sorted(set.intersection(*({line["round"] for line in s} for s in series)))
    by_round = [{line["round"]: line["accuracy_mean"] for line in s} for s in series]
    return np.array(rounds), np.array([[accuracy[r] for r in rounds] for accuracy in by_round])


def clusters(run: Planned, path: Path) -> Path | None:
    """Draw the sizes of the clusters by round, stacked; None where a method has none."""
    lines = [line for line in outcome.metrics(run.folder) if "cluster_sizes" in line]
    if not lines:
        return None
    plt = pyplot()
    sizes = np.array([line["cluster_sizes"] for line in lines], float).T
    figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    axes.stackplot([line["round"] for line in lines], sizes, edgecolor="white", linewidth=.4,
                   colors=[COLOURS[i % len(COLOURS)] for i in range(len(sizes))])
    axes.set(xlabel="round", ylabel="participants in each cluster", title=f"{run.row}, {run.column}")
    axes.margins(x=0, y=0)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
    return path
