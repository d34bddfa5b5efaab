"""Accuracy, or the error if targets were learned: by round, by client, by bytes and by time."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.json_values import JsonObject
from fedmpi.report.figures import style
from fedmpi.report.figures.registry import figure_of_column
from fedmpi.report.results import ReportRun, Results
from fedmpi.storage.run_status import list_evaluated, list_numbers
from fedmpi.task import CLASSIFICATION, REGRESSION, Task, find_task
from fedmpi.text import MIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# what follows a title
UNITS = {CLASSIFICATION: " (%)", REGRESSION: ""}
# returns the place of each line of metrics.jsonl on the horizontal axis
Across = Callable[[list[JsonObject]], np.ndarray]


@figure_of_column("accuracy",
                  "{evaluated}, mean over clients; band: standard deviation over seeds, if there are several")
def draw_accuracy_by_round(results: Results, column: str) -> Figure | None:
    """Draw the mean accuracy over clients by round."""
    return draw_against(results, column, "round", lambda lines: np.array([line["round"] for line in lines], float))


@figure_of_column(
    "clients",
    "{evaluated} of the single clients at the end; box: quartiles, whiskers: 5 to 95 %, crosses: clients beyond, line: "
    "median, circle: mean")
def draw_accuracy_by_client(results: Results, column: str) -> Figure | None:
    """Draw the distribution of the clients' accuracies in the last evaluated round, over all seeds."""
    found = [(row, values) for row in results.rows if len(values := collect_last_accuracies(results.of(row, column)))]
    if not found:
        return None
    names = [style.wrap_name(row) for row, _ in found]
    figure = style.make_figure(1.2 + max(.45 * len(found), .18 * style.count_lines(names)))
    scale = find_scale(results.task)
    axes = figure.subplots()
    axes.boxplot([scale * values for _, values in found], orientation="horizontal", whis=(5, 95), widths=.55,
                 showmeans=True, patch_artist=True, boxprops={"facecolor": style.COLOURS[5], "alpha": .6},
                 medianprops={"color": "black", "linewidth": 1.5}, flierprops={"marker": "x", "markersize": 3},
                 meanprops={"marker": "o", "markerfacecolor": "white", "markeredgecolor": "black", "markersize": 5})
    axes.set_yticklabels(names)
    axes.invert_yaxis()
    axes.set(xlabel=f"{results.evaluated} of a client{UNITS[results.task]}")
    axes.grid(alpha=.3, axis="x")
    return figure


@figure_of_column("bytes", "{evaluated} against what all clients received and sent")
def draw_accuracy_by_bytes(results: Results, column: str) -> Figure | None:
    """Draw the mean accuracy against the bytes that all clients have received and sent."""
    return draw_against(results, column, "received and sent by all clients (MiB)", sum_moved_mib)


@figure_of_column("seconds", "{evaluated} against the time spent in rounds")
def draw_accuracy_by_seconds(results: Results, column: str) -> Figure | None:
    """Draw the mean accuracy against the seconds that the rounds have taken. A title warns if ranks differ."""
    figure = draw_against(results, column, "time in rounds (s)",
                          lambda lines: np.array(list_numbers(lines, "seconds")))
    ranks = {row: sorted({run.outcome.result.get("ranks", 1) for run in results.of(row, column) if run.outcome.result})
             for row in results.rows}
    used = sorted({number for numbers in ranks.values() for number in numbers})
    if figure and len(used) > 1:
        names = "; ".join(f"{number}: {', '.join(row for row in ranks if number in ranks[row])}" for number in used)
        figure.suptitle(f"not comparable: runs had different numbers of MPI ranks ({names})", fontsize=8, wrap=True)
    return figure


def find_scale(task: Task) -> int:
    """Return what values are multiplied by: accuracies are drawn in percent, errors as they are."""
    return 100 if task.larger_is_better else 1


def sum_moved_mib(lines: list[JsonObject]) -> np.ndarray:
    """Return the MiB that all clients moved up to each round. A round without a line counts like the next one."""
    rounds = np.diff([line["round"] for line in lines], prepend=0)
    # A warm-up before the first round has a line of its own, that of round 0.
    rounds[:1] = np.maximum(rounds[:1], 1)
    moved = np.multiply(list_numbers(lines, "mib_per_client_round"), list_numbers(lines, "participants"))
    # What others move than participants, if they move something
    moved += sum(np.nan_to_num(list_numbers(lines, key)) for key in ("mib_candidates", "mib_idle"))
    # LCFed's matrix goes once to each client, which has a cluster from then on
    reached = [sum(line.get("cluster_sizes_all") or []) for line in lines]
    return np.cumsum(rounds * moved) + np.nan_to_num(list_numbers(lines, "bytes_once")) * reached / MIB


def draw_against(results: Results, column: str, label: str, across: Across) -> Figure | None:
    """Draw the mean accuracy of each row over `across(lines)`, with a band of one standard deviation over seeds."""
    figure = style.make_figure()
    axes, drawn, scale = figure.subplots(), 0, find_scale(results.task)
    for i, row in enumerate(results.rows):
        x, accuracies = find_common_rounds([run.outcome.lines for run in results.list_drawn(row, column)], across)
        if not len(x):
            continue
        drawn, mean = drawn + 1, scale * accuracies.mean(0)
        # A row that moves no bytes has a level and no curve.
        if x[-1] == 0:
            axes.axhline(mean[-1], label=f"{row} (moves nothing)", **style.style_line(i) | {"marker": ""})
            continue
        axes.plot(x, mean, label=row, markevery=style.choose_marker_spacing(len(x)), **style.style_line(i))
        if len(accuracies) > 1:
            spread = scale * accuracies.std(0, ddof=1)
            axes.fill_between(x, mean - spread, mean + spread, color=style.style_line(i)["color"], alpha=.2,
                              linewidth=0)
    if not drawn:
        return None
    axes.set(xlabel=label, ylabel=f"{results.evaluated}, mean over clients{UNITS[results.task]}")
    if label == "round":
        style.label_rounds_axis(axes)
    style.add_legend(axes)
    return figure


def find_common_rounds(series: list[list[JsonObject]], across: Across) -> tuple[np.ndarray, np.ndarray]:
    """Return the places (rounds,) of the rounds that all runs evaluated, mean over runs, and the accuracies
    (runs, rounds)."""
    series = [lines for lines in series if list_evaluated(lines)]
    if not series:
        return np.empty(0), np.empty((0, 0))
    rounds = sorted(set.intersection(*({line["round"] for line in list_evaluated(lines)} for lines in series)))
    at, accuracies = [], []
    for lines in series:
        place = {line["round"]: i for i, line in enumerate(lines)}
        kept = [place[r] for r in rounds]
        at.append(across(lines)[kept])
        accuracies.append([lines[i][find_task(lines[i]).key] for i in kept])
    return np.mean(at, 0), np.array(accuracies, float)


def collect_last_accuracies(runs: list[ReportRun]) -> np.ndarray:
    """Return the clients' accuracies (or errors) at the end of finished runs, without attackers and clients that have
    no test data."""
    found = [run.last_measures for run in runs if run.last_measures is not None]
    values = np.concatenate(found) if found else np.empty(0)
    return values[~np.isnan(values)]
