"""Mean ranks of the rows, with the critical difference."""
from __future__ import annotations

from typing import TYPE_CHECKING

from fedmpi.report.figures import style
from fedmpi.report.figures.registry import figure_of_results
from fedmpi.report.results import Results
from fedmpi.report.significance import rank_rows
from fedmpi.text import count_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@figure_of_results("ranks", "Mean rank by {measure} after the last round, over columns, of each the mean over the "
                   "seeds in which all rows are finished; a bar joins rows whose difference is not significant "
                   "(Nemenyi, level .05: a column counts once, whatever its seeds)")
def draw_mean_ranks(results: Results) -> Figure | None:
    """Draw the critical-difference diagram of the rows."""
    ranks = rank_rows(results)
    if ranks is None:
        return None
    ordered = sorted(zip(ranks.means, ranks.rows, strict=True))
    bars = list_groups([mean for mean, _ in ordered], ranks.critical_difference) if ranks.can_differ else []
    names = [style.wrap_name(f"{row} ({mean:.2f})") for mean, row in ordered]
    figure = style.make_figure(1.1 + .28 * style.count_lines(names) + .12 * len(bars))
    axes = figure.subplots()
    for place, (mean, _) in enumerate(ordered):
        # names of the right half stand on the left of their points, where there is room
        side = -1 if mean > (1 + len(ordered)) / 2 else 1
        axes.plot(mean, place, "o", color=style.COLOURS[0], markersize=5)
        axes.annotate(names[place], (mean, place), xytext=(7 * side, 0), textcoords="offset points", va="center",
                      ha="left" if side > 0 else "right", fontsize=8)
    for number, (first, last) in enumerate(bars):
        height = len(ordered) - .4 + .35 * number
        axes.plot([ordered[first][0], ordered[last][0]], [height, height], color="black", linewidth=2.5,
                  solid_capstyle="butt")
    told = "" if ranks.can_differ else ":\nwith so few, no difference could be significant"
    axes.set(xlabel=f"mean rank over {count_words(ranks.columns, 'column')}, of each the mean over its seeds "
                    f"(critical difference {ranks.critical_difference:.2f}{told})",
             xlim=(.8, len(ordered) + .2), ylim=(len(ordered) - .2 + .35 * len(bars), -.8))
    axes.set_yticks([])
    axes.grid(alpha=.3, axis="x")
    return figure


def list_groups(means: list[float], critical_difference: float) -> list[tuple[int, int]]:
    """Return the first and the last place of every largest group of rows that do not differ.

    Args:
        means: mean ranks, ascending
        critical_difference: rows whose means are further apart differ"""
    groups: list[tuple[int, int]] = []
    for first, mean in enumerate(means):
        last = max(i for i, other in enumerate(means) if other - mean <= critical_difference)
        if last > first and not (groups and groups[-1][1] >= last):
            groups.append((first, last))
    return groups
