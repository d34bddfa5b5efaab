"""What networks learn, and how clients are therefore measured: the classes of samples, or numbers (`data.task`).

The names of measures in metrics.jsonl, result.json and history.h5 begin with those of a Task, so these files tell which
task their run had."""
from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from fedmpi.text import format_percent

# significant digits of a mean that are not noise
SCORE_DIGITS = 12


@dataclass(frozen=True)
class Task:
    """What is learned, and the measures that follow from it."""
    # as `data.task` names it
    name: str
    # the main measure of a client, by which rounds and runs are compared, and a second one
    measure: str
    second: str
    # the main measure in words
    title: str
    larger_is_better: bool

    @property
    def key(self) -> str:
        """Return the key of the main measure's mean over the clients."""
        return f"{self.measure}_mean"

    @property
    def weighted(self) -> str:
        """Return the key of the main measure over all clients' samples."""
        return f"{self.measure}_weighted"

    def score(self, value: float) -> float:
        """Return a number that is larger if the main measure is better, without the noise of floating-point arithmetic,
        so that the first of equal rounds is the best one: the mean of .3, .2 and .1 is not that of .1, .2 and .3."""
        return float(f"{value if self.larger_is_better else -value:.{SCORE_DIGITS}g}")

    def format(self, value: float | None) -> str:
        """Return a value of the main measure as text: accuracies in percent, errors with four digits."""
        if self.larger_is_better:
            return format_percent(value)
        return "-" if value is None or value != value else f"{value:.4g}"


class MeasureNames(NamedTuple):
    """The names of all measures of a run: those of what is learned, and those of the further ones."""
    task: Task
    # in the order in which they stand behind the others, see Evaluate.columns
    further: tuple[str, ...]


CLASSIFICATION = Task("classification", "accuracy", "f1", "accuracy", True)
# mse: mean squared error; mae: mean absolute error
REGRESSION = Task("regression", "mse", "mae", "squared error", False)
TASKS = {task.name: task for task in (CLASSIFICATION, REGRESSION)}


def choose_heading(reached: Iterable[str]) -> str:
    """Return the heading of a column of texts that `Task.format` made."""
    return "accuracy" if all(text.endswith(("%", "-")) for text in reached) else "accuracy or error"


def find_task(names: Container[str]) -> Task:
    """Return the task of a run, from the keys of its result, of a line of metrics.jsonl or of the columns of its
    history. A run of which nothing was measured counts as a classification."""
    known = any(name in names for name in (CLASSIFICATION.key, CLASSIFICATION.measure))
    errors = any(name in names for name in (REGRESSION.key, REGRESSION.measure))
    return REGRESSION if errors and not known else CLASSIFICATION
