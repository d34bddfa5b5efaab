"""Draw the distribution of the labels: the samples of every client and class, and the sizes of the clients.

Legend of shapes: n clients, c classes."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.data.federation import Federation
from fedmpi.errors import BadInput
from fedmpi.paths import refuse_empty_path
from fedmpi.task import REGRESSION
from fedmpi.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour-blind readers can tell these colours apart.
PARTS = (("train", "#0072b2"), ("validation", "#009e73"), ("test", "#e69f00"))
# With more clients or more classes than these, the map has no room for a number in every cell.
WRITTEN = (25, 12)
# Up to this number of groups, their names are written; more of them are separated by lines only.
MARKED = 25
# A longer name of a class or client is cut.
LONGEST_NAME = 20
# The map is about this many pixels wide. If there are more clients, they are blended, so that none is left out.
PIXELS = 1500


def draw_federation(config: str, overrides: Sequence[str], out: str | None) -> tuple[Path, Path]:
    """Prepare the federation of a configuration, and write a PNG of its labels, beside it unless `out` names a file.
    Return the paths of both. Raises BadInput."""
    from fedmpi.config import schema
    from fedmpi.data import federation
    refuse_empty_path("--out", out)
    settings = schema.load_config(config, overrides)
    path = federation.prepare_federation(settings.data, settings.seed, check=True)
    picture = Path(out) if out else path.with_suffix(".png")
    write_label_plot(federation.Federation(path), picture)
    return path, picture


def write_label_plot(federation: Federation, path: str | Path) -> None:
    """Write a PNG of the label distribution. Raises BadInput if the file cannot be written."""
    try:
        draw_distribution(federation).savefig(path, dpi=130, format="png")
    except OSError as error:
        raise BadInput(f"{path}: cannot write the picture: {error.strerror}; name a folder that can be "
                       "written") from None


def draw_distribution(federation: Federation) -> Figure:
    """Draw the samples of each client and class; the clients are sorted by planted group if there are groups."""
    from matplotlib.figure import Figure
    order = np.arange(federation.clients)
    if federation.groups is not None:
        order = np.argsort(federation.groups, kind="stable")
    width = float(np.clip(3 + .35 * federation.clients, 7, 14))
    height = float(np.clip(2.6 + .3 * federation.label_counts.shape[-1], 4.5, 9))
    figure = Figure(figsize=(width, height), layout="constrained")
    sizes, table = figure.subplots(2, 1, sharex=True, height_ratios=[1.2, height - 2.2])
    draw_sizes(sizes, federation, order)
    draw_labels(figure, table, federation, order)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    if federation.groups is not None:
        mark_groups(sizes, table, federation.groups[order], federation.group_names)
    partition = dict(federation.settings["partition"])
    figure.suptitle(escape_formulas(
        f"{federation.name}: {partition.pop('name')}"
        f"({', '.join(f'{k}={v}' for k, v in partition.items() if v is not None)})"), fontsize=11)
    return figure


def draw_sizes(axes: Axes, federation: Federation, order: np.ndarray) -> None:
    """Draw one bar per client, with its parts stacked; `order` (n,) lists the clients from left to right."""
    below = np.zeros(federation.clients)
    edges = np.arange(federation.clients + 1) - .5
    for (name, colour), part in zip(PARTS, federation.counts[order].T, strict=True):
        if part.any():
            axes.stairs(below + part, edges, baseline=below, fill=True, color=colour, label=name)
        # This makes a new array, because the bar keeps the array that it stands on.
        below = below + part
    axes.set(ylabel="samples", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)


def draw_labels(figure: Figure, axes: Axes, federation: Federation, order: np.ndarray) -> None:
    """Draw the samples of each class and client (c, n) as a map of colours, with its colour bar.

    The colours are logarithmic, because the numbers differ by orders of magnitude. `order` (n,) lists the clients from
    left to right."""
    from matplotlib.colors import LogNorm
    counts = federation.label_counts.sum(1)[order].T
    least, most = find_color_limits(counts)
    image = axes.imshow(np.ma.masked_equal(counts, 0), norm=LogNorm(least, most), cmap="viridis_r",
                        origin="lower", aspect="auto",
                        interpolation="nearest" if federation.clients <= PIXELS else "auto")
    bar = figure.colorbar(image, ax=axes, label="samples (white: none)", pad=.01)
    ticks = np.unique(np.geomspace(least, most, 5).round().astype(int))
    bar.set_ticks(ticks, labels=ticks)
    bar.minorticks_off()
    sorted_by = "" if federation.groups is None else ", sorted by planted group (lines)"
    targets = federation.task is REGRESSION
    axes.set(xlabel=f"client{sorted_by}", ylabel="bin of targets, from small to large" if targets else "class")
    axes.yaxis.get_major_locator().set_params(integer=True)
    clients, classes = (federation.names.get(f"{kind}_names") for kind in ("client", "class"))
    if federation.clients <= 40:
        axes.set_xticks(range(federation.clients), [shorten_name(clients[i]) for i in order] if clients else order)
        axes.tick_params("x", rotation=90 if clients and federation.clients > 8 else 0)
    if len(counts) <= 20:
        axes.set_yticks(range(len(counts)), classes and list(map(shorten_name, classes[:len(counts)])))
    if federation.clients <= WRITTEN[0] and len(counts) <= WRITTEN[1]:
        write_counts(axes, counts)


def shorten_name(name: str) -> str:
    """Return a name as text of at most LONGEST_NAME characters, in which nothing is a formula."""
    name = printable(name)
    return escape_formulas(name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME - 3]}...")


def escape_formulas(text: str) -> str:
    """Return a text in which nothing is a formula, and every character can be drawn."""
    return printable(text).replace("$", r"\$")


def find_color_limits(counts: np.ndarray) -> tuple[int, int]:
    """Return the smallest positive and the largest count, where the colours begin and end.

    They differ by at least 1, because a logarithmic scale cannot be a single point."""
    least, most = int(counts[counts > 0].min()), int(counts.max())
    return least, max(most, least + 1)


def write_counts(axes: Axes, counts: np.ndarray) -> None:
    """Write the positive counts (c, n) into their cells, in white if the cell is dark."""
    # The geometric mean is the middle of a logarithmic scale.
    dark = counts > np.sqrt(np.prod(find_color_limits(counts)))
    for k, i in np.argwhere(counts):
        colour = "white" if dark[k, i] else "black"
        axes.text(i, k, counts[k, i], ha="center", va="center", fontsize=7, color=colour)


def mark_groups(sizes: Axes, table: Axes, groups: np.ndarray, names: list[str] | None = None) -> None:
    """Separate the planted groups by lines in both plots, and write their names or numbers above them.

    `groups` (n,) is sorted; `names` are the names of the groups, if they have any."""
    firsts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    for first in firsts[1:]:
        for axes in (sizes, table):
            axes.axvline(first - .5, color="black", linewidth=.8)
    if len(firsts) <= MARKED:
        for first, last in zip(firsts, [*firsts[1:], len(groups)], strict=True):
            name = f"group {groups[first]}" if len(firsts) <= 8 else groups[first]
            name = shorten_name(names[groups[first]]) if names else name
            sizes.text((first + last - 1) / 2, 1.02, name, transform=sizes.get_xaxis_transform(),
                       ha="center", va="bottom", fontsize=8)
