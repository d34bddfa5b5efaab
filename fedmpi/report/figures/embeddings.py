"""Embeddings of the clients: their heads, which t-SNE lays out in the plane."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmpi.report.figures import style
from fedmpi.report.figures.registry import figure_of_run
from fedmpi.report.results import ReportRun
from fedmpi.task import find_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROUNDS_DRAWN = 3
# van der Maaten's choice; with few clients it is smaller
PERPLEXITY = 30


@figure_of_run("tsne", "t-SNE of the clients' heads")
def draw_tsne(run: ReportRun) -> Figure | None:
    """Draw the stored embeddings of up to three rounds, coloured by cluster, and below by planted group."""
    found = run.history.get("embedding")
    if found is None:
        return None
    moments = np.flatnonzero(np.isfinite(found).all(2).sum(1) >= 3)
    if not len(moments):
        return None
    moments = moments[np.unique(np.linspace(0, len(moments) - 1, ROUNDS_DRAWN).round().astype(int))]
    kinds = list_labellings(run)
    figure = style.make_figure(.6 + 2.3 * len(kinds), 2.4 * len(moments) + 1.2)
    grid = figure.subplots(len(kinds), len(moments), squeeze=False)
    for panels, at in zip(grid.T, moments, strict=True):
        here = np.isfinite(found[at]).all(1)
        points = lay_out(found[at][here])
        for axes, (kind, labels, names) in zip(panels, kinds, strict=True):
            draw_points(axes, points, labels[at][here], names)
            axes.set(title=f"{kind}, round {int(run.history['round'][at])}", xticks=[], yticks=[])
    # A cluster that is empty at the end is in the legend too.
    for panels in grid:
        marks = {name: mark for axes in panels for mark, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        panels[-1].legend(marks.values(), marks.keys(), frameon=False, fontsize=7, loc="center left",
                          bbox_to_anchor=(1, .5))
    figure.suptitle(run.name, fontsize=10)
    return figure


def list_labellings(run: ReportRun) -> list[tuple[str, np.ndarray, list[str]]]:
    """Return what the points are coloured by: kind, labels (rounds, N), and names of the labels, if any."""
    clusters = run.history.get("cluster")
    kinds: list[tuple[str, np.ndarray, list[str]]] = []
    if clusters is not None and (clusters >= 0).any():
        kinds.append(("cluster", clusters.astype(int), []))
    federation = run.federation
    if federation is not None and federation.groups is not None:
        groups = np.broadcast_to(federation.groups, (len(run.history["round"]), federation.clients))
        kinds.append(("planted group", groups, list(federation.group_names or [])))
    return kinds or [("clients", np.zeros(run.history[find_task(run.history).measure].shape, int), ["all"])]


def lay_out(rows: np.ndarray) -> np.ndarray:
    """Return the places (n, 2) in the plane that t-SNE gives to rows (n, width)."""
    from sklearn.manifold import TSNE
    # t-SNE fails if all rows are alike.
    if not np.ptp(rows, 0).any():
        return np.zeros((len(rows), 2))
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(rows.astype(float))


def draw_points(axes: Axes, points: np.ndarray, labels: np.ndarray, names: list[str]) -> None:
    """Draw points (n, 2), each in the look of its label (n,); a negative label means none."""
    for label in np.unique(labels):
        i = max(0, int(label))
        name = "none" if label < 0 else names[i] if i < len(names) else str(i)
        look = style.style_point(i) if label >= 0 else style.style_point(i) | {"facecolor": "white"}
        axes.scatter(*points[labels == label].T, label=name, **look)
