"""Measures of one client, from the outputs for its samples and their labels or targets, or from its predicted classes.

Either CLIENT_MEASURES or TARGET_MEASURES are always taken. `evaluate.measures` names further ones: BUILT_IN, or
functions of the user's own.
Legend: n samples, c classes."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmpi import registry
from fedmpi.config.evaluation import name_column
from fedmpi.errors import BadInput, FaultyCode, FedmpiError
from fedmpi.own_code.failures import blame_own_code
from fedmpi.own_code.places import describe_definition
from fedmpi.task import REGRESSION, Task

# A further measure: logits (n, c) float32 and labels (n,) int64 on the CPU -> a number; nan if it is not defined. If
# targets are learned, it is given outputs (n, 1) and targets (n,), both float32.
Measure = Callable[[Tensor, Tensor], float]

# `loss` is a sum over the samples
CLIENT_MEASURES = ("correct", "tested", "loss", "f1")
# The same places if targets are learned: the main measure and the loss are the summed squared error, and the second
# measure is the mean absolute error.
TARGET_MEASURES = ("squared_error", "tested", "loss", "mae")


def measure_samples(outputs: Tensor, y: Tensor) -> np.ndarray:
    """Return the measures of outputs (s, c) for labels y (s,) int64, or for float targets y."""
    return measure_targets(outputs, y) if y.is_floating_point() else measure_logits(outputs, y)


def measure_logits(logits: Tensor, y: Tensor) -> np.ndarray:
    """Return the CLIENT_MEASURES of a client from its logits (n, c) and labels (n,)."""
    loss = float(F.cross_entropy(logits, y, reduction="sum"))
    predicted = predict_classes(logits) if math.isnan(loss) else logits.argmax(1)
    return measure_predictions(y.numpy(), predicted.numpy(), logits.shape[1], loss)


def predict_classes(logits: Tensor) -> Tensor:
    """Return the predicted class of each sample, (...), from logits (..., c); it is c, which is not a class, where the
    logits of a diverged model hold nan, of which `argmax` would make a class that may happen to be right."""
    return torch.where(logits.sum(-1).isnan(), logits.shape[-1], logits.argmax(-1))


def measure_targets(outputs: Tensor, y: Tensor) -> np.ndarray:
    """Return the TARGET_MEASURES of a client from its outputs (n, 1) and targets (n,)."""
    errors = outputs.squeeze(-1).double() - y.double()
    return measure_errors(float(errors.square().sum()), len(y), float(errors.abs().sum()))


def measure_errors(squared: float, tested: int, absolute: float) -> np.ndarray:
    """Return the TARGET_MEASURES of errors from the sums of their squares and of their absolute values."""
    return np.array([squared, tested, squared, absolute / tested])


def measure_predictions(y: np.ndarray, predicted: np.ndarray, classes: int, loss: float,
                        precision: type[np.floating] = np.float64) -> np.ndarray:
    """Return the CLIENT_MEASURES from labels and predicted classes (n,), see predict_classes, and the summed loss.

    Args:
        precision: the type in which F1 is computed"""
    hits = y[predicted == y]
    # A confusion matrix would grow with the square of the classes, and is asked for no more than this.
    counts = (np.bincount(found, minlength=classes)[:classes].astype(precision) for found in (hits, y, predicted))
    return np.array([len(hits), len(y), loss, compute_macro_f1(*counts)])


def compute_macro_f1(hit: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean F1 over the classes that occur among labels or predictions, from how often each class (c,) is
    predicted rightly, is a label, and is predicted."""
    present = (true + predicted) > 0
    return float((2 * hit[present] / (true + predicted)[present]).mean())


def compute_auc(logits: Tensor, y: Tensor) -> float:
    """Return the mean area under the ROC curves of the classes among the labels, each against the rest; nan if there
    is a single class, or if probabilities are not finite.

    It is scikit-learn's `roc_auc_score` of one class's probabilities, averaged over the classes that the client has
    (`multi_class="ovr", average="macro"`): the share of pairs of a sample of the class and another sample in which the
    former has the larger probability, where equal ones count half."""
    probabilities, classes = logits.double().softmax(1), y.unique()
    if len(classes) < 2 or not probabilities.isfinite().all():
        return math.nan
    areas = []
    for label in classes:
        own, others = probabilities[y == label, label], probabilities[y != label, label].sort().values
        # Of the other samples, those below each sample of the class, and those below or equal to it.
        below, up_to = (torch.searchsorted(others, own, right=right) for right in (False, True))
        areas.append(float((below + up_to).sum()) / (2 * len(own) * len(others)))
    return float(np.mean(areas))


def compute_balanced_accuracy(logits: Tensor, y: Tensor) -> float:
    """Return the mean recall of the classes among the labels (scikit-learn's `balanced_accuracy_score`)."""
    right = (predict_classes(logits) == y).double()
    return float(torch.stack([right[y == label].mean() for label in y.unique()]).mean())


# of equal width, as in the paper's experiments
CONFIDENCE_BINS = 15


def compute_calibration_error(logits: Tensor, y: Tensor) -> float:
    """Return the expected calibration error (Guo et al., ICML 2017, eqs. 3 and 5), between 0 and 1.

    Samples are divided into CONFIDENCE_BINS by their confidence, the largest probability; a bin holds its upper edge.
    The error is the mean over samples of the gap between accuracy and mean confidence in the bin."""
    confidence, predicted = logits.double().softmax(1).max(1)
    bins = np.digitize(confidence.numpy(), np.linspace(0, 1, CONFIDENCE_BINS + 1), right=True)
    gaps = np.bincount(bins, (predicted == y).numpy() - confidence.numpy())
    return float(np.abs(gaps).sum() / len(y))


BUILT_IN: dict[str, Measure] = {"auc": compute_auc, "balanced_accuracy": compute_balanced_accuracy,
                                "calibration_error": compute_calibration_error}


def load_measures(names: Sequence[str]) -> list[Measure]:
    """Return the functions of `evaluate.measures`.

    Raises:
        BadInput: if one of the user's own cannot be imported or is not a function."""
    found: list[Measure] = []
    for name in names:
        function: object = registry.find_class("measures", name)
        if not callable(function):
            raise FaultyCode(f"evaluate.measures: {name} is {type(function).__name__}, not a function of logits and "
                             "labels; name a function as module:function")
        found.append(BUILT_IN[name] if name in BUILT_IN else partial(measure_by_own_code, name, function))
    return found


def measure_by_own_code(name: str, function: Callable[[Tensor, Tensor], object], logits: Tensor, y: Tensor) -> float:
    """Return a measure of the user's own. It is given copies, so that it cannot change what others measure.

    Raises:
        FedmpiError: if it returns no number."""
    value = function(logits.clone(), y.clone())
    if isinstance(value, int | float | np.number) or isinstance(value, Tensor | np.ndarray) and value.ndim == 0:
        return float(value)
    raise FedmpiError(f"evaluate.measures: {name}: {describe_definition(function)}it must return a number, not a "
                      f"{type(value).__name__}")


# Of so many classes a measure is tried on samples: with all of 65,535 they would take 34 GB.
TRIED_CLASSES = 1000


def try_measures(names: Sequence[str], classes: int, task: Task) -> None:
    """Call the user's own measures once before a run, on two right predictions of each class (of the first
    TRIED_CLASSES), or of two targets.

    Raises:
        BadInput: if one cannot be used."""
    if not names:
        return
    tried = min(classes, TRIED_CLASSES)
    logits, y = torch.eye(tried, classes).repeat(2, 1), torch.arange(tried).repeat(2)
    if task is REGRESSION:
        y = torch.tensor([-1., 1.])
        logits = y[:, None]
    for name, measure in zip(names, load_measures(names), strict=True):
        if task is REGRESSION and (name in BUILT_IN or name_column(name) in (task.measure, task.second)):
            raise BadInput(f"evaluate.measures: {name} is " + (
                "a measure of predicted classes, and data.task = regression predicts numbers; leave it out"
                if name in BUILT_IN else f"measured anyway, as {name_column(name)}; give yours another name"))
        if name in BUILT_IN:
            continue
        try:
            with blame_own_code(f"evaluate.measures: {name}", always=True):
                measure(logits, y)
        except BadInput:
            raise
        except FedmpiError as error:
            raise FaultyCode(str(error)) from None
