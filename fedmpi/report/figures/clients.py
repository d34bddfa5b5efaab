"""Clients: which samples each holds, and how strongly its model is pulled."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmpi.report.figures import style
from fedmpi.report.figures.registry import figure_of_column
from fedmpi.report.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@figure_of_column("labels", "Samples of each client and class")
def draw_label_distribution(results: Results, column: str) -> Figure | None:
    """Draw the label distribution of the first seed's federation that is on this machine, if there is one."""
    from fedmpi.data.label_plot import draw_distribution
    runs = sorted((run for run in results.runs if run.column == column),
                  key=lambda run: results.seeds.index(run.seed))
    federation = next((run.federation for run in runs if run.federation), None)
    return draw_distribution(federation) if federation else None


@figure_of_column("lam", "Pull to the cluster's model (lam), mean over clients and over each planted group")
def draw_lam(results: Results, column: str) -> Figure | None:
    """Draw the mean lam by round, over all clients and over each planted group with a name; mean over seeds."""
    figure = style.make_figure(3.2)
    axes, drawn = figure.subplots(), 0
    for row in results.rows:
        found = [run.outcome.lines for run in results.list_drawn(row, column) if run.outcome.lines]
        keys = [key for key in (found[0][-1] if found else {}) if key.startswith("lam_")]
        for key in keys:
            rounds = [line["round"] for line in found[0]]
            values = [{line["round"]: line.get(key) for line in lines} for lines in found]
            means = [np.mean([np.nan if v.get(r) is None else v[r] for v in values]) for r in rounds]
            who = key.removeprefix("lam_").replace("_", " ").replace("mean", "all clients")
            axes.plot(rounds, means, label=f"{row}: {who}", markevery=style.choose_marker_spacing(len(rounds)),
                      **style.style_line(drawn))
            drawn += 1
    if not drawn:
        return None
    axes.set(ylabel="lam", yscale="log")
    style.label_rounds_axis(axes)
    style.add_legend(axes)
    return figure
