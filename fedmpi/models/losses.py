"""The cross-entropy of a network, to whose logits others may be added. Legend: b batch, c classes."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, y: Tensor, reduction: str = "mean", smoothing: float = 0.) -> Tensor:
    """Return the cross-entropy of logits (b, c) for labels y (b,), or for what `attach_logits` returns.

    Args:
        smoothing: the share of each label that is spread evenly over all classes."""
    if y.is_floating_point():
        logits, y = logits + y[:, 1:], y[:, 0].long()
    if reduction == "none" and not smoothing and not logits.is_cuda:
        # The same numbers by operations that torch.func.vmap knows. It would take nll_loss apart in Python in each
        # step, and load the compiler of PyTorch to do so.
        return -F.log_softmax(logits, -1).gather(-1, y[..., None]).squeeze(-1)
    return F.cross_entropy(logits, y, reduction=reduction, label_smoothing=smoothing)


def attach_logits(y: Tensor, logits: Tensor) -> Tensor:
    """Return labels y (...,) and logits (..., c) as one tensor (..., 1 + c).

    `cross_entropy` adds these logits to those of a network. Batches,
    subsets and padding treat the tensor as they treat labels."""
    if y.is_floating_point():
        return torch.cat([y[..., :1], y[..., 1:] + logits], -1)
    return torch.cat([y[..., None].to(logits.dtype), logits], -1)
