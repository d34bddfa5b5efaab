"""Work: the time of a round by phase."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmpi.report.figures import style
from fedmpi.report.figures.registry import figure_of_column
from fedmpi.report.results import ReportRun, Results
from fedmpi.storage.run_status import find_seconds_before

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PHASE_LABELS = ("training", "evaluation", "rest: server, communication")
# percent of idle time from which on it is drawn
LEAST_SHOWN_IDLE = 2


@figure_of_column(
    "phases", "Time of a round by phase; idle share: time of the workers in which they wait for the slowest")
def draw_phases(results: Results, column: str) -> Figure | None:
    """Draw the seconds of a round by phase, stacked, and the idle share beside them; means over rounds and seeds."""
    found = [(row, np.mean(times, 0)) for row in results.rows
             if (times := [t for run in results.of(row, column) if (t := average_phases(run)) is not None])]
    if not found:
        return None
    names, idle = [style.wrap_name(row) for row, _ in found], [100 * times[-1] for _, times in found]
    figure = style.make_figure(1.4 + max(.4 * len(found), .18 * style.count_lines(names)))
    # A single worker never waits for another one. A bar of a small share could not be seen.
    waits = bool(max(idle) >= LEAST_SHOWN_IDLE)
    axes = figure.subplots(1, 1 + waits, sharey=True, squeeze=False, width_ratios=[3] + [1] * waits)[0]
    places, before = np.arange(len(found)), np.zeros(len(found))
    for i, phase in enumerate(PHASE_LABELS):
        seconds = np.array([times[i] for _, times in found])
        axes[0].barh(places, seconds, left=before, label=phase, **style.style_area(i))
        before += seconds
    axes[0].set_yticks(places, names)
    axes[0].invert_yaxis()
    axes[0].set(xlabel="seconds of a round")
    if waits:
        axes[1].barh(places, idle, **style.style_area(3))
        axes[1].set(xlabel="idle share (%)", xlim=(0, 100))
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return figure


def average_phases(run: ReportRun) -> tuple[float, ...] | None:
    """Return the mean seconds of a round in each of PHASE_LABELS, of the slowest rank, and the workers' idle share."""
    keys = ("seconds_train", "seconds_judge", "idle_share", "seconds")
    lines = [line for line in run.outcome.lines if all(line.get(key) is not None for key in keys) and line["round"] > 0]
    if not lines:
        return None
    train, evaluation, idle = (float(np.mean([line[key] for line in lines])) for key in keys[:3])
    # Version 0.1 wrote no line for a round that was not evaluated.
    evaluation *= len(lines) / lines[-1]["round"]
    seconds = lines[-1]["seconds"] - find_seconds_before(run.outcome.lines)
    return train, evaluation, max(0., seconds / lines[-1]["round"] - train - evaluation), idle
