"""Accuracy: by round, by client, by bytes and by time."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.report.figures import style
from fedmpi.report.figures.registry import figure_of_column
from fedmpi.report.results import Results, Shown
from fedmpi.storage.run_status import evaluated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACCURACY = "test accuracy, mean over clients (%)"
# returns the place of each line of metrics.jsonl on the horizontal axis
Across = Callable[[list[dict]], np.ndarray]


@figure_of_column("accuracy", "Test accuracy, mean over clients; band: standard deviation over seeds")
def draw_accuracy_by_round(results: Results, column: str) -> Figure | None:
    """Draw the mean accuracy over clients by round."""
    return against(results, column, "round", lambda lines: np.array([line["round"] for line in lines], float))


@figure_of_column(
    "clients",
    "Accuracy of the single clients at the end; box: quartiles, whiskers: 5 to 95 %, line: median, circle: mean")
def by_client(results: Results, column: str) -> Figure | None:
    """Draw the distribution of the clients' accuracies in the last evaluated round, over all seeds."""
    found = [(row, values) for row in results.rows if len(values := last(results.of(row, column)))]
    if not found:
        return None
    figure = style.figure(1.2 + .45 * len(found))
    axes = figure.subplots()
    axes.boxplot([100 * values for _, values in found], orientation="horizontal", whis=(5, 95), widths=.55,
                 showmeans=True, patch_artist=True, boxprops={"facecolor": style.COLOURS[5], "alpha": .6},
                 medianprops={"color": "black", "linewidth": 1.5}, flierprops={"marker": "x", "markersize": 3},
                 meanprops={"marker": "o", "markerfacecolor": "white", "markeredgecolor": "black", "markersize": 5})
    axes.set_yticklabels([row for row, _ in found])
    axes.invert_yaxis()
    axes.set(xlabel="test accuracy of a client (%)")
    axes.grid(alpha=.3, axis="x")
    return figure


@figure_of_column("bytes", "Test accuracy against what all clients received and sent")
def by_bytes(results: Results, column: str) -> Figure | None:
    """Draw the mean accuracy against the bytes that all clients have received and sent."""
    return against(results, column, "received and sent by all clients (MiB)", moved)


@figure_of_column("seconds", "Test accuracy against the time spent in rounds")
def by_seconds(results: Results, column: str) -> Figure | None:
    """Draw the mean accuracy against the seconds that the rounds have taken."""
    return against(results, column, "time in rounds (s)", lambda lines: np.array([line["seconds"] for line in lines]))


def moved(lines: list[dict]) -> np.ndarray:
    """Return the MiB that all clients moved up to each round. A round without a line counts like the next one."""
    rounds = np.diff([line["round"] for line in lines], prepend=0)
    return np.cumsum(rounds * [line["mib_per_client_round"] * line["participants"] for line in lines])


def against(results: Results, column: str, label: str, across: Across) -> Figure | None:
    """Draw the mean accuracy of each row over `across(lines)`, with a band of one standard deviation over seeds."""
    figure = style.figure()
    axes, drawn = figure.subplots(), 0
    for i, row in enumerate(results.rows):
        x, accuracies = common([run.outcome.lines for run in results.of(row, column)], across)
        if not len(x):
            continue
        drawn, mean = drawn + 1, 100 * accuracies.mean(0)
        # A row that moves no bytes has a level and no curve.
        if x[-1] == 0:
            axes.axhline(mean[-1], label=f"{row} (moves nothing)", **style.line(i) | {"marker": ""})
            continue
        axes.plot(x, mean, label=row, markevery=style.few(len(x)), **style.line(i))
        if len(accuracies) > 1:
            spread = 100 * accuracies.std(0, ddof=1)
            axes.fill_between(x, mean - spread, mean + spread, color=style.line(i)["color"], alpha=.2, linewidth=0)
    if not drawn:
        return None
    axes.set(xlabel=label, ylabel=ACCURACY)
    if label == "round":
        style.across_rounds(axes)
    style.legend(axes)
    return figure


def common(series: list[list[dict]], across: Across) -> tuple[np.ndarray, np.ndarray]:
    """Return the places (rounds,) of the rounds that all runs evaluated, mean over runs, and the accuracies
    (runs, rounds)."""
    series = [lines for lines in series if evaluated(lines)]
    if not series:
        return np.empty(0), np.empty((0, 0))
    rounds = sorted(set.intersection(*({line["round"] for line in evaluated(lines)} for lines in series)))
    at, accuracies = [], []
    for lines in series:
        place = {line["round"]: i for i, line in enumerate(lines)}
        kept = [place[r] for r in rounds]
        at.append(across(lines)[kept])
        accuracies.append([lines[i]["accuracy_mean"] for i in kept])
    return np.mean(at, 0), np.array(accuracies, float)


def last(runs: list[Shown]) -> np.ndarray:
    """Return the clients' accuracies at the end of runs, without clients that have no test data."""
    values = [run.history["accuracy"][-1] for run in runs if len(run.history.get("accuracy", ()))]
    values = np.concatenate(values) if values else np.empty(0)
    return values[~np.isnan(values)]
