"""Measures of one client, from the logits and labels of its samples or from its confusion matrix."""
from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# `loss` is a sum over the samples
CLIENT_MEASURES = ("correct", "tested", "loss", "f1")


def measure_logits(logits: Tensor, y: Tensor) -> np.ndarray:
    """Return the CLIENT_MEASURES of a client from its logits (n, c) and labels (n,)."""
    c = logits.shape[1]
    predicted = logits.argmax(1)
    confusion = torch.bincount(y * c + predicted, minlength=c * c).view(c, c)
    loss = F.cross_entropy(logits, y, reduction="sum")
    return measure_confusion(confusion.numpy(), float(loss))


def measure_confusion(confusion: np.ndarray, loss: float) -> np.ndarray:
    """Return the CLIENT_MEASURES of a confusion matrix (c, c), whose rows are labels, and the summed loss."""
    return np.array([float(confusion.trace()), float(confusion.sum()), loss, macro_f1(confusion)])


def macro_f1(confusion: np.ndarray) -> float:
    """Return the mean F1 over the classes that occur among labels or predictions.

    Args:
        confusion: (c, c), counts; rows are labels, columns predictions"""
    hit, true, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    present = (true + predicted) > 0
    return float((2 * hit[present] / (true + predicted)[present]).mean())
