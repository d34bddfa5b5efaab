"""The cross-entropy of a network, to whose logits others may be added. Legend: b batch, c classes."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of logits (b, c) for labels y (b,), or for what `attach_logits` returns."""
    if y.is_floating_point():
        logits, y = logits + y[:, 1:], y[:, 0].long()
    return F.cross_entropy(logits, y, reduction=reduction)


def attach_logits(y: Tensor, logits: Tensor) -> Tensor:
    """Return labels y (...,) and logits (..., c) as one tensor (..., 1 + c).

    `cross_entropy` adds these logits to those of a network. Batches,
    subsets and padding treat the tensor as they treat labels."""
    if y.is_floating_point():
        return torch.cat([y[..., :1], y[..., 1:] + logits], -1)
    return torch.cat([y[..., None].to(logits.dtype), logits], -1)
