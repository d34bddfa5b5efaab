"""How much the gradients of batches differ: the variance that a descent sees. Legend: c clients, k of them active."""
from __future__ import annotations

import torch
from torch import Tensor

from fedmpi.torch_compat import add_to_each


class GradientVariance:
    """Adds up gradients, lists of tensors (k, ...), in `parts`, tensors (c, ...) of zeros shaped like them."""

    def __init__(self, parts: list[Tensor]):
        self.parts = parts
        self.squares, self.steps = parts[0].new_zeros(2, len(parts[0]))

    def add(self, grads: list[Tensor]) -> None:
        k = len(grads[0])
        add_to_each([part[:k] for part in self.parts], grads)
        self.squares[:k] += sum_squares(grads)
        self.steps[:k] += 1

    def value(self) -> Tensor:
        """Return the variance, summed over coordinates, (c,); 0 where there was one gradient only."""
        about_mean = self.squares - sum_squares(self.parts) / self.steps.clamp_min(1)
        return torch.where(self.steps > 1, about_mean.clamp_min(0) / (self.steps - 1).clamp_min(1), 0)


def sum_squares(parts: list[Tensor]) -> Tensor:
    """Return each client's sum of squares, (c,). Summed dimension by dimension: in one go the order, and so the bits,
    would depend on the number of clients."""
    total = 0.
    for part in parts:
        part = part.square()
        while part.ndim > 1:
            part = part.sum(-1)
        total = total + part
    return total
