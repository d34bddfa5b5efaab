"""What all figures share. Read without colours too: lines differ by dash and marker, areas by hatch."""
from __future__ import annotations

import io

import matplotlib

# colour-blind-safe (Okabe and Ito, 2008)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
# the same, so that the first few differ in brightness too
AREAS = ("#0072B2", "#F0E442", "#D55E00", "#56B4E9", "#000000", "#E69F00", "#009E73", "#CC79A7")
DASHES = ("-", "--", "-.", ":")
MARKERS = "osv^Dx+*"
FILLED = "os^DvPX*"
HATCHES = ("", "//", "..", "\\\\", "", "xx", "oo", "++")
DPI = 110
WIDTH = 6.4      # inches


def figure(height: float = 4.2, width: float = WIDTH):
    from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


def line(i: int) -> dict:
    """Return how the i-th line is drawn."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // 2 % len(DASHES)],
            "marker": MARKERS[i % len(MARKERS)], "markersize": 4}


def area(i: int) -> dict:
    """Return how the i-th area is filled."""
    return {"facecolor": AREAS[i % len(AREAS)], "hatch": HATCHES[i % len(HATCHES)], "edgecolor": "white",
            "linewidth": .3}


def point(i: int) -> dict:
    """Return how the points of the i-th group are drawn, in the colour of its area."""
    return {"facecolor": AREAS[i % len(AREAS)], "marker": FILLED[i % len(FILLED)], "edgecolor": "black",
            "linewidths": .6, "s": 24}


def few(points: int) -> int:
    """Return every how many of so many points a marker is drawn."""
    return max(1, points // 8)


def legend(axes) -> None:
    lines = len(axes.get_legend_handles_labels()[1])
    axes.legend(frameon=False, fontsize=8, ncols=2 if lines > 6 else 1)
    axes.grid(alpha=.3)


def saved(figure, form: str) -> bytes:
    """Return a figure as the bytes of a file, the same for the same figure."""
    target = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "fedmpi"}):
        figure.savefig(target, format=form, dpi=DPI, metadata={"Date": None} if form == "svg" else {"Software": None})
    return target.getvalue()
