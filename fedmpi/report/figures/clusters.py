"""Clusters: their sizes and members, their agreement with planted groups, and the work of k-means."""
from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.report.figures import style
from fedmpi.report.figures.registry import figure_of_column, figure_of_run
from fedmpi.report.results import ReportRun, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@figure_of_run("clusters", "Clients in each cluster by round")
def draw_cluster_sizes(run: ReportRun) -> Figure | None:
    """Draw the number of clients in each cluster by round, stacked."""
    rounds, counts = count_members(run)
    if not len(counts):
        return None
    figure = style.make_figure(3.2)
    axes = figure.subplots()
    below = np.zeros(len(rounds))
    for i, count in enumerate(counts):
        axes.fill_between(rounds, below, below + count, step="mid", label=f"{i}", **style.style_area(i))
        below = below + count
    axes.set(ylabel="clients", title=run.name)
    style.label_rounds_axis(axes)
    axes.margins(x=0, y=0)
    axes.yaxis.get_major_locator().set_params(integer=True)
    figure.legend(title="cluster", loc="outside right upper", frameon=False, fontsize=8, reverse=True)
    return figure


def count_members(run: ReportRun) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds (r,) and the number of clients in each cluster (k, r), up to the last cluster with any.

    Runs of version 0.1 stored it by client, and for evaluated rounds alone."""
    lines = [line for line in run.outcome.lines if line.get("cluster_sizes_all")]
    rounds, sizes = [line["round"] for line in lines], [line["cluster_sizes_all"] for line in lines]
    if not lines and (found := run.history.get("cluster")) is not None and (found >= 0).any():
        rounds, sizes = run.history["round"], [[(row == k).sum() for k in range(int(found.max()) + 1)] for row in found]
    # Lines may differ in their number of clusters.
    counts = np.array([*itertools.zip_longest(*sizes, fillvalue=0)], float) if len(sizes) else np.empty((0, 0))
    return np.array(rounds), counts[:max(np.flatnonzero(counts.any(1)), default=-1) + 1]


@figure_of_run("assignments", "Cluster that each client was last put in, by evaluated round; a column reaches back to "
               "the evaluated round before")
def draw_assignments(run: ReportRun) -> Figure | None:
    """Draw the cluster of each client by round. Clients are sorted by planted group, then by cluster."""
    from matplotlib.colors import BoundaryNorm, ListedColormap
    found = run.history.get("cluster")
    if found is None or not (found >= 0).any():
        return None
    groups = run.federation.groups if run.federation else None
    order = np.lexsort((found[-1],) if groups is None else (found[-1], groups))
    image, rounds, k = found[:, order].T, run.history["round"], int(found.max()) + 1
    figure = style.make_figure(float(np.clip(1.5 + .12 * len(image), 3, 7)))
    axes = figure.subplots()
    mesh = axes.pcolormesh(find_column_edges(rounds), np.arange(len(image) + 1), np.ma.masked_less(image, 0),
                           rasterized=True, cmap=ListedColormap(style.choose_colours(k)),
                           norm=BoundaryNorm(np.arange(k + 1) - .5, k))
    figure.colorbar(mesh, ax=axes, ticks=range(k), label="cluster (white: none yet)", pad=.02)
    if groups is not None:
        for first in np.flatnonzero(np.diff(groups[order])) + 1:
            axes.axhline(first, color="white", linewidth=2)
            axes.axhline(first, color="black", linewidth=.8)
    by = "cluster at the end" if groups is None else "planted group (lines)\nand cluster at the end"
    axes.set(ylabel=f"clients, sorted by {by}", yticks=[], title=run.name)
    style.label_rounds_axis(axes)
    axes.yaxis.label.set_fontsize(8)
    return figure


def find_column_edges(rounds: np.ndarray) -> np.ndarray:
    """Return the edges of the columns of evaluated rounds: a column covers the rounds since the previous one."""
    return np.concatenate([[min(0, rounds[0] - 1)], rounds]) + .5


@figure_of_column("agreement", "Agreement of the clusters with the planted groups (adjusted Rand index; 1: the same)")
def draw_agreement(results: Results, column: str) -> Figure | None:
    """Draw the adjusted Rand index of clusters and planted groups by round."""
    return draw_by_round(results, column, "ari", "adjusted Rand index")


@figure_of_column("iterations", "Iterations of k-means at the server")
def draw_iterations(results: Results, column: str) -> Figure | None:
    """Draw the iterations of k-means by round."""
    return draw_by_round(results, column, "iterations", "iterations of k-means")


@figure_of_column("distance", "Distance of what is clustered from its cluster's mean, mean over the participants")
def draw_distance(results: Results, column: str) -> Figure | None:
    """Draw the mean distance from the cluster's mean by round."""
    return draw_by_round(results, column, "distance", "mean distance from the cluster's mean")


def draw_by_round(results: Results, column: str, key: str, label: str) -> Figure | None:
    """Draw a number of every round, mean over seeds, for every row that has it."""
    figure = style.make_figure(3.2)
    axes, drawn = figure.subplots(), 0
    for i, row in enumerate(results.rows):
        found = [{line["round"]: line[key] for line in run.outcome.lines if line.get(key) is not None}
                 for run in results.list_drawn(row, column)]
        found = [values for values in found if values]
        if found:
            rounds = sorted(set.intersection(*map(set, found)))
            drawn += 1
            axes.plot(rounds, [np.mean([values[r] for values in found]) for r in rounds], label=row,
                      markevery=style.choose_marker_spacing(len(rounds)), **style.style_line(i))
    if not drawn:
        return None
    axes.set(ylabel=label)
    style.label_rounds_axis(axes)
    style.add_legend(axes)
    return figure
