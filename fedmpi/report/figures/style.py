"""Colours, lines, legends and sizes of all figures.

Figures are readable without colours, too: the first 32 lines differ by dash and marker, the first 8 areas by hatch, and
the first 32 by colour and hatch."""
from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# colour-blind-safe (Okabe and Ito, 2008)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
# the same, so that the first few differ in brightness too
AREAS = ("#0072B2", "#F0E442", "#D55E00", "#56B4E9", "#000000", "#E69F00", "#009E73", "#CC79A7")
DASHES = ("-", "--", "-.", ":")
MARKERS = "osv^Dx+*"
FILLED = "os^DvPX*"
HATCHES = ("", "//", "..", "\\\\", "--", "xx", "oo", "++")
# The files of every figure, with the dots per inch of what is drawn as dots: for screens, and for papers.
FORMS = {"png": 110, "svg": 110}
FORMS_FOR_PRINT = {"png": 300, "svg": 300, "pdf": 300}
FIGURE_WIDTH_IN = 6.4
# A legend inside the axes may name this many lines for each inch of height.
LEGEND_LINES_PER_INCH = 1.5
# Longer names of rows are broken, so that axes keep their place beside them.
NAME_LINE_CHARACTERS = 34


def wrap_name(name: str) -> str:
    """Return a name of a row in lines of at most NAME_LINE_CHARACTERS, between words if there are some."""
    return "\n".join(textwrap.wrap(name, NAME_LINE_CHARACTERS) or [name])


def count_lines(names: Sequence[str]) -> int:
    """Return how many lines these names have together."""
    return sum(name.count("\n") + 1 for name in names)


def make_figure(height: float = 4.2, width: float = FIGURE_WIDTH_IN) -> Figure:
    """Return an empty figure of this size in inches, which a notebook shows."""
    from fedmpi.report.figures.shown_figure import ShownFigure
    return ShownFigure(figsize=(width, height), layout="constrained")


def style_line(i: int) -> dict[str, object]:
    """Return how the i-th line is drawn. No two of the first 32 have the same dash and marker."""
    turn = i // len(COLOURS)
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[(i + 2 * turn) % len(DASHES)],
            "marker": MARKERS[(i + turn) % len(MARKERS)], "markersize": 4}


def style_area(i: int) -> dict[str, object]:
    """Return how the i-th area is filled. No two of the first 64 have the same colour and hatch."""
    turn = i // len(AREAS)
    return {"facecolor": AREAS[i % len(AREAS)], "hatch": HATCHES[(i + turn) % len(HATCHES)], "edgecolor": "white",
            "linewidth": .3}


def choose_colours(k: int) -> list[str]:
    """Return k different colours for an image without hatches: those of areas, or shades from dark to bright if these
    are too few."""
    if k <= len(AREAS):
        return [*AREAS[:k]]
    from matplotlib.colors import to_hex
    return [to_hex(matplotlib.colormaps["viridis"](i / (k - 1))) for i in range(k)]


def style_point(i: int) -> dict[str, object]:
    """Return how the points of the i-th group are drawn, in the colour of its area."""
    return {"facecolor": AREAS[i % len(AREAS)], "marker": FILLED[i % len(FILLED)], "edgecolor": "black",
            "linewidths": .6, "s": 24}


def choose_marker_spacing(points: int) -> int:
    """Return n such that a marker at each n-th of so many points gives about eight markers."""
    return max(1, points // 8)


def label_rounds_axis(axes: Axes) -> None:
    """Label the horizontal axis as rounds, with ticks at whole numbers."""
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)


def add_legend(axes: Axes) -> None:
    """Name the lines inside the axes; if there are many, beside them, in the order of their last values."""
    marks, names = axes.get_legend_handles_labels()
    axes.grid(alpha=.3)
    if not names:
        return
    names = [wrap_name(name) for name in names]
    lines = count_lines(names)
    if lines <= LEGEND_LINES_PER_INCH * axes.figure.get_figheight() and lines == len(names):
        axes.legend(marks, names, frameon=False, fontsize=8)
        return
    order = sorted(range(len(names)), key=lambda i: -marks[i].get_ydata()[-1])
    axes.legend([marks[i] for i in order], [names[i] for i in order], frameon=False, fontsize=7, handlelength=3,
                loc="center left", bbox_to_anchor=(1, .5))
    axes.figure.set_size_inches(FIGURE_WIDTH_IN + 1.8, max(axes.figure.get_figheight(), .6 + .165 * lines))


def show_dollars(figure: Figure) -> None:
    """Let names show their dollar signs, between which Matplotlib would read formulas. Its own formulas, the numbers on
    logarithmic axes, stay."""
    from matplotlib.text import Text
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_ticklabels()
    for text in figure.findobj(Text):
        if "$" in text.get_text() and "mathdefault" not in text.get_text():
            text.set_parse_math(False)


def render(figure: Figure, forms: Mapping[str, int]) -> dict[str, bytes]:
    """Return a figure as the bytes of a file in each form. The same figure gives the same bytes.

    Texts stay texts in SVG and PDF files: they can be searched, and a browser or an editor chooses their font.

    Args:
        forms: of png, svg and pdf, with the dots per inch of what is drawn as dots"""
    # These would differ from call to call, or between versions of Matplotlib.
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None, "Producer": None}}
    show_dollars(figure)
    # The places of axes and legends are worked out once; every form would do so again.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    found = {}
    with matplotlib.rc_context({"svg.hashsalt": "fedmpi", "svg.fonttype": "none", "pdf.fonttype": 42}):
        for form, dpi in forms.items():
            target = io.BytesIO()
            figure.savefig(target, format=form, dpi=dpi, metadata=metadata[form])
            found[form] = target.getvalue()
    return found
