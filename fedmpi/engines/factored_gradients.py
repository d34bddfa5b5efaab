"""Gradients of large Linear layers as their factors: g.T @ x, of a batch's few gradients and inputs.

Autograd multiplies them out: a matrix as large as the weights is written, read again, and added to them in a second
pass. Here the product is added to the weights at once, and the forward pass is the product that BLAS is faster at.
On a CPU only, where such a layer is bound by memory: half of a step of its time. Only in plain networks (Net.plain):
a forward pass of a user's own may take gradients, or be taken again, where nothing may be noted. Legend: b samples."""
from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedmpi.models import precision

MIN_FACTORED_WEIGHTS = 1 << 18      # weights of a layer below which it costs more than it saves
THIN = 64            # samples up to which BLAS is faster at weights times inputs than at inputs times weights


class Factors(NamedTuple):
    """The gradient g.T @ x (out, in) of a layer's weights."""
    g: Tensor      # (b, out)
    x: Tensor      # (b, in)


class Linear(torch.autograd.Function):
    """F.linear of x (b, in), whose backward pass notes the factors of the weights' gradient."""

    @staticmethod
    def forward(ctx, x, weight, bias, found: list):
        ctx.save_for_backward(x, weight)
        ctx.found = found
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        ctx.found.append(Factors(g, x.detach()))
        return (g @ weight if ctx.needs_input_grad[0] else None, None,
                g.sum(0) if ctx.needs_input_grad[2] else None, None)


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return F.linear(rows, weight, bias) of rows (b, in): like that a tensor of its own, contiguous."""
    if len(rows) > THIN:
        return F.linear(rows, weight, bias)
    columns = weight @ rows.T if bias is None else torch.addmm(bias[:, None], weight, rows.T)
    return columns.T.clone(memory_format=torch.contiguous_format)


class Judging(TorchFunctionMode):
    """Within it F.linear of many weights is the product above. For passes that need no gradient."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.linear and not kwargs and args[0].ndim == 2 and args[1].numel() >= MIN_FACTORED_WEIGHTS:
            return product(*args)
        return func(*args, **(kwargs or {}))


def judging(net, device: torch.device):
    """Return the context of forward passes without gradients."""
    return (
        Judging() if net.size >= MIN_FACTORED_WEIGHTS and device.type == "cpu" and exchangeable(net) else nullcontext()
    )


class Tap(TorchFunctionMode):
    """Within it the F.linear of some leaves is the Linear above."""

    def __init__(self, leaves: list[Tensor]):
        super().__init__()
        self.leaves, self.found = leaves, {id(leaf): [] for leaf in leaves if worth(leaf)}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.linear and not kwargs and (found := self.found.get(id(args[1]))) is not None:
            x, bias = args[0], args[2] if len(args) > 2 else None
            y = Linear.apply(x if x.ndim == 2 else x.reshape(-1, x.shape[-1]), args[1], bias, found)
            return y if x.ndim == 2 else y.view(*x.shape[:-1], -1)
        return func(*args, **(kwargs or {}))

    def gradients(self, loss: Tensor) -> list[Tensor | Factors]:
        """Return the gradient of each leaf. Raises RuntimeError for a leaf of which the loss knows nothing."""
        whole = torch.autograd.grad(loss, self.leaves, allow_unused=True)
        out = [one(gradient, self.found.get(id(leaf), ())) for leaf, gradient in zip(self.leaves, whole, strict=True)]
        for found in self.found.values():
            found.clear()
        return out


def one(whole: Tensor | None, found) -> Tensor | Factors:
    """Return one gradient of what a layer's weights have got: several uses add up."""
    if whole is None and len(found) == 1:
        return found[0]
    parts = [f.g.T @ f.x for f in found] + ([] if whole is None else [whole])
    if not parts:
        raise RuntimeError("a parameter of the network takes no part in its output")
    return sum(parts[1:], parts[0])


def worth(leaf: Tensor) -> bool:
    return leaf.ndim == 2 and leaf.numel() >= MIN_FACTORED_WEIGHTS and not leaf.is_cuda and leaf.requires_grad


def fit(net, leaves: list[Tensor]) -> bool:
    """Say whether to tap at all."""
    return any(worth(leaf) for leaf in leaves) and exchangeable(net)


def exchangeable(net) -> bool:
    """Say whether F.linear may be another function in a network. Autocast has its own."""
    return not precision.autocasts() and net.plain


def add_gradients(targets: list[Tensor], gradients, alpha: float = 1.) -> None:
    """Add alpha times each gradient to its target."""
    whole = [(t, g) for t, g in zip(targets, gradients, strict=True) if not isinstance(g, Factors)]
    if whole:
        torch._foreach_add_(*map(list, zip(*whole, strict=True)), alpha=alpha)
    for target, gradient in zip(targets, gradients, strict=True):
        if isinstance(gradient, Factors):
            target.detach().addmm_(gradient.g.T, gradient.x, alpha=alpha)
