"""The loss of a network's outputs, to which others may be added: the cross-entropy of labels, or the squared error of
targets. Legend: b batch, c classes."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmpi.errors import BadInput


def compute_loss(logits: Tensor, y: Tensor, reduction: str = "mean", smoothing: float = 0.) -> Tensor:
    """Return the cross-entropy of logits (b, c) for labels y (b,), or the squared error of outputs (b, 1) for float
    targets y (b,); or either of them for what `attach_logits` returns.

    Args:
        smoothing: the share of each label that is spread evenly over all classes."""
    if y.is_floating_point():
        if y.ndim == 2:
            logits, y = logits + y[:, 1:], y[:, 0]
        # A network of classes has several outputs, see attach_logits.
        if logits.shape[-1] == 1:
            return F.mse_loss(logits.squeeze(-1), y, reduction=reduction)
        y = y.long()
    if reduction == "none" and not smoothing and not logits.is_cuda:
        # The same numbers by operations that torch.func.vmap knows. It would take nll_loss apart in Python in each
        # step, and load the compiler of PyTorch to do so.
        return -F.log_softmax(logits, -1).gather(-1, y[..., None]).squeeze(-1)
    return F.cross_entropy(logits, y, reduction=reduction, label_smoothing=smoothing)


def read_labels(y: Tensor, ndim: int = 1) -> Tensor:
    """Return the labels (...,) in labels, or in what `attach_logits` returns. Raises BadInput for targets.

    Args:
        ndim: the dimensions of the labels: 1, or 2 for several clients."""
    if y.ndim > ndim:
        return y[..., 0].long()
    if y.is_floating_point():
        raise BadInput("method: data.task = regression has targets and no classes, which data.class_counts and "
                       "data.class_sums go by; set supports_targets = False in the method's class")
    return y


def count_classes(y: Tensor, classes: int) -> Tensor:
    """Return how many labels y (n,), or of what `attach_logits` returns, are of each class, (c,) float."""
    return F.one_hot(read_labels(y), classes).sum(0).to(torch.get_default_dtype())


def attach_logits(y: Tensor, logits: Tensor) -> Tensor:
    """Return labels or targets y (...,) and logits (..., c) as one tensor (..., 1 + c).

    `compute_loss` adds these logits to those of a network. Batches, subsets and padding treat the tensor as they treat
    labels. Labels of a single class stay as they are: no logits change their cross-entropy."""
    if y.ndim == logits.ndim:
        return torch.cat([y[..., :1], y[..., 1:] + logits], -1)
    if logits.shape[-1] == 1 and not y.is_floating_point():
        return y
    return torch.cat([y[..., None].to(logits.dtype), logits], -1)
