"""Draw who holds what: the samples of every client and class, and how many each client has."""
from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmpi.data.federation import Federation
from fedmpi.errors import BadInput

# colours that the colour-blind tell apart
PARTS = (("train", "#0072b2"), ("validation", "#009e73"), ("test", "#e69f00"))
WRITTEN = (25, 12)      # clients, classes: a larger map has no room for a number in every cell
MARKED = 25             # groups: more of them are told apart by lines alone
PIXELS = 1500           # of the map, across: beyond, clients would be left out unless they are blended


def write_label_plot(federation: Federation, path: str | Path):
    """Write a PNG of the label distribution. Raises BadInput if it fails."""
    try:
        distribution(federation).savefig(path, dpi=130, format="png")
    except OSError as error:
        raise BadInput(f"{path}: cannot write the picture: {error.strerror}; name a folder that can be "
                       "written") from None


def distribution(federation: Federation):
    """Return the Figure of the samples of each client and class, clients sorted by planted group."""
    from matplotlib.figure import Figure
    order = np.arange(federation.clients)
    if federation.groups is not None:
        order = np.argsort(federation.groups, kind="stable")
    width = float(np.clip(3 + .35 * federation.clients, 7, 14))
    height = float(np.clip(2.6 + .3 * federation.classes, 4.5, 9))
    figure = Figure(figsize=(width, height), layout="constrained")
    sizes, table = figure.subplots(2, 1, sharex=True, height_ratios=[1.2, height - 2.2])
    draw_sizes(sizes, federation, order)
    draw_labels(figure, table, federation, order)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    if federation.groups is not None:
        mark_groups(sizes, table, federation.groups[order], federation.group_names)
    partition = dict(federation.settings["partition"])
    figure.suptitle(f"{federation.name}: {partition.pop('name')}"
                    f"({', '.join(f'{k}={v}' for k, v in partition.items() if v is not None)})", fontsize=11)
    return figure


def draw_sizes(axes, federation: Federation, order):
    """Stack each client's parts into one bar."""
    below = np.zeros(federation.clients)
    edges = np.arange(federation.clients + 1) - .5
    for (name, colour), part in zip(PARTS, federation.counts[order].T, strict=True):
        if part.any():
            axes.stairs(below + part, edges, baseline=below, fill=True, color=colour, label=name)
        below = below + part      # not in place: the bar keeps what it stands on
    axes.set(ylabel="samples", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)


def draw_labels(figure, axes, federation: Federation, order):
    """Map the samples (classes, clients) to colours, by a logarithm: shares differ by orders of magnitude."""
    from matplotlib.colors import LogNorm
    counts = federation.label_counts.sum(1)[order].T
    least, most = limits(counts)
    image = axes.imshow(np.ma.masked_equal(counts, 0), norm=LogNorm(least, most), cmap="viridis_r",
                        origin="lower", aspect="auto",
                        interpolation="nearest" if federation.clients <= PIXELS else "auto")
    bar = figure.colorbar(image, ax=axes, label="samples (white: none)", pad=.01)
    ticks = np.unique(np.geomspace(least, most, 5).round().astype(int))
    bar.set_ticks(ticks, labels=ticks)
    bar.minorticks_off()
    sorted_by = "" if federation.groups is None else ", sorted by planted group (lines)"
    axes.set(xlabel=f"client{sorted_by}", ylabel="class")
    axes.yaxis.get_major_locator().set_params(integer=True)
    if federation.clients <= 40:
        axes.set_xticks(range(federation.clients), order)
    if federation.classes <= 20:
        axes.set_yticks(range(federation.classes))
    if federation.clients <= WRITTEN[0] and federation.classes <= WRITTEN[1]:
        write_counts(axes, counts)


def limits(counts) -> tuple[int, int]:
    """Return where the colours begin and end; a logarithmic scale cannot be a single point."""
    least, most = int(counts[counts > 0].min()), int(counts.max())
    return least, max(most, least + 1)


def write_counts(axes, counts):
    dark = counts > np.sqrt(np.prod(limits(counts)))      # the middle of a logarithmic scale
    for k, i in np.argwhere(counts):
        colour = "white" if dark[k, i] else "black"
        axes.text(i, k, counts[k, i], ha="center", va="center", fontsize=7, color=colour)


def mark_groups(sizes, table, groups, names=None):
    """Separate the planted groups by lines and write their names or numbers above them; `groups` is sorted."""
    firsts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    for first in firsts[1:]:
        for axes in (sizes, table):
            axes.axvline(first - .5, color="black", linewidth=.8)
    if len(firsts) <= MARKED:
        for first, last in zip(firsts, [*firsts[1:], len(groups)], strict=True):
            name = f"group {groups[first]}" if len(firsts) <= 8 else groups[first]
            name = names[groups[first]] if names else name
            sizes.text((first + last - 1) / 2, 1.02, name, transform=sizes.get_xaxis_transform(),
                       ha="center", va="bottom", fontsize=8)
