"""What an optimizer adds to a plain SGD step: decay of the weights, shorter gradients, Nesterov's momentum, Adam.

All follow torch.optim, and take their steps on one vector (d,) or on those of c clients (c, d) in place. No step waits
for a GPU, and none needs a number that Python counts, so a CUDA graph may record them.
Legend: c clients, k of them active, d parameters."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedmpi.engines.gradient_variance import sum_squares
from fedmpi.torch_compat import add_each, multiply_each

# Decay rates of Adam's two moments, and what keeps its denominator above 0: those of torch.optim.
ADAM_BETAS = (.9, .999)
ADAM_EPS = 1e-8
# What torch.nn.utils.clip_grad_norm_ adds to a norm before it divides by it.
CLIP_EPS = 1e-6
# Vectors (d,) of a client beyond those of SGD with momentum: the total gradient, two moments and one in between.
ADAM_VECTORS = 4


class Optimizer(NamedTuple):
    """The settings of the optimizer, except learning rate and momentum; see config.train.Train."""
    name: str = "sgd"
    weight_decay: float = 0.
    nesterov: bool = False
    clip_norm: float | None = None

    @property
    def needs_total(self) -> bool:
        """Say whether a step needs the sum of the gradient and all pulls as one vector."""
        return self.nesterov or self.name != "sgd"

    @property
    def adapts_gradients(self) -> bool:
        """Say whether `adapt_gradients` changes anything."""
        return self.clip_norm is not None or self.weight_decay > 0 and self.name != "adamw"

    def adapt_gradients(self, gradients: Sequence[Tensor], weights: Sequence[Tensor], several: bool) -> list[Tensor]:
        """Return the gradients of a batch, shortened, with the decay of their weights added to them.

        Args:
            weights: those that the gradients are by, in the same order.
            several: they are those of several clients, (k, ...) each."""
        adapted = list(gradients)
        if self.clip_norm is not None:
            adapted = shorten_gradients(adapted, self.clip_norm, several)
        if self.weight_decay and self.name != "adamw":
            adapted = add_each(adapted, list(weights), alpha=self.weight_decay)
        return adapted

    def decay_weights(self, weights: Sequence[Tensor], lr: float) -> None:
        """Take the decay that is not part of the gradient: AdamW's."""
        if self.weight_decay and self.name == "adamw" and weights:
            multiply_each(list(weights), 1 - lr * self.weight_decay)


PLAIN_SGD = Optimizer()


def count_further_vectors(optimizer: Optimizer) -> int:
    """Return how many vectors of parameters a client takes beyond those of SGD with momentum."""
    return ADAM_VECTORS if optimizer.name != "sgd" else int(optimizer.nesterov)


def shorten_gradients(gradients: list[Tensor], longest: float, several: bool) -> list[Tensor]:
    """Return gradients whose norm over all tensors is at most `longest`, for each client of `several`."""
    norms = sum_squares(gradients if several else [g[None] for g in gradients]).sqrt()
    factors = (longest / (norms + CLIP_EPS)).clamp(max=1)
    if not several:
        return [g * factors[0] for g in gradients]
    return [g * factors.view(-1, *[1] * (g.ndim - 1)) for g in gradients]


class Moments:
    """Adam's moments of the total gradient.

    Args:
        first, second: zeros like the weights, (d,) or (c, d)."""

    def __init__(self, first: Tensor, second: Tensor):
        self.first, self.second = first, second
        # float64, since 1 - .999 has only four digits in float32
        self._betas = torch.tensor(ADAM_BETAS, dtype=torch.float64, device=first.device)
        # what both moments still lack: the betas to the power of the number of steps
        self._left = torch.ones_like(self._betas)

    def step(self, weights: Tensor, total: Tensor, lr: float, k: int | None) -> None:
        """Move the weights of the clients that move, (..., d), by one step with their total gradient.

        With m and v as the moments, and a and b as what they have seen so far of the gradients, torch.optim takes
        w - lr (m / a) / (sqrt(v / b) + eps). Here that is w - lr m / (sqrt(v) a / sqrt(b) + a eps), which reads and
        writes the long vectors less often.

        Args:
            k: how many clients move, the first ones of c; None: all."""
        first, second = (self.first, self.second) if k is None else (self.first[:k], self.second[:k])
        self._left.mul_(self._betas)
        seen_first, seen_second = (1 - self._left).unbind()
        first.lerp_(total, 1 - ADAM_BETAS[0])
        second.mul_(ADAM_BETAS[1]).addcmul_(total, total, value=1 - ADAM_BETAS[1])
        bound = second.sqrt().mul_(seen_first / seen_second.sqrt()).add_(seen_first * ADAM_EPS)
        weights.addcdiv_(first, bound, value=-lr)
