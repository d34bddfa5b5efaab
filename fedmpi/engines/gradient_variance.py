"""The variance of the gradients of a descent's batches. Legend: c clients, k of them active."""
from __future__ import annotations

import torch
from torch import Tensor

from fedmpi.torch_compat import add_to_each


class GradientVariance:
    """Adds gradients up, from which it computes their variance.

    Args:
        parts: zeros (c, ...), one tensor for each gradient; the sums are kept in them."""

    def __init__(self, parts: list[Tensor]):
        self.parts = parts
        self.squares, self.steps = parts[0].new_zeros(2, len(parts[0]))

    def add(self, grads: list[Tensor]) -> None:
        """Add the gradients (k, ...) of one step of the first k clients."""
        k = len(grads[0])
        add_to_each([part[:k] for part in self.parts], grads)
        self.squares[:k] += sum_squares(grads)
        self.steps[:k] += 1

    def value(self) -> Tensor:
        """Return the variance (c,), summed over coordinates; 0 for a client with a single gradient."""
        about_mean = self.squares - sum_squares(self.parts) / self.steps.clamp_min(1)
        return torch.where(self.steps > 1, about_mean.clamp_min(0) / (self.steps - 1).clamp_min(1), 0)


def sum_squares(parts: list[Tensor]) -> Tensor:
    """Return each client's sum of squares, (c,).

    It is taken dimension by dimension: in one sum the order, and with it the bits, would depend on how many clients
    there are."""
    total = 0.
    for part in parts:
        part = part.square()
        while part.ndim > 1:
            part = part.sum(-1)
        total = total + part
    return total
