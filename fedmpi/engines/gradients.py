"""How engines compute gradients: of a network or of a loss of a method's own, for one client or for c at once.

Each `bind_...` function returns what computes the gradients of a batch, and `views`, which returns the parts of a flat
vector in the order of these gradients. Legend: c clients, k of them active, d parameters, b batch."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedmpi.errors import BadInput
from fedmpi.models.flat import Net, cross_entropy, flatten_parameter, is_inside
from fedmpi.models.precision import run_forward

# A loss of a method's own: loss(w, x, y, *args) -> (b,), differentiated by the flat vector w (d,).
Loss = Callable[..., Tensor]

def is_empty(only: slice | None) -> bool:
    """Say whether a block is empty, as the feature extractor of a network of a single layer is."""
    return only is not None and only.start == only.stop


def refuse_nothing(chosen: list[int], only: slice | None) -> None:
    """Refuse a block that holds no whole parameter. Raises BadInput."""
    if not chosen:
        raise BadInput(f"method: data.descend(only={only}): this part of the vector holds no parameter of the network "
                       "as a whole, so that nothing would move; take a block of the model")


def bind_module(net: Net, w: Tensor, only: slice | None):
    """Bind w to the module. Return the vector that moves, (x, y) -> gradients, and flat -> views like these."""
    work = net.bind(w)
    chosen = net.moving(only)
    refuse_nothing(chosen, only)
    leaves = [net.parameter(i) for i in chosen]

    def gradients(x, y):
        net.train(len(y))
        return torch.autograd.grad(cross_entropy(run_forward(net.module, x), y), leaves)

    def views(flat):
        parts = net.split(flat)
        return [parts[i] for i in chosen]
    return work, gradients, views


def bind_loss(loss, w: Tensor, only: slice | None, args):
    """The same for any loss(w, x, y, *args) -> (b,), differentiated with respect to the flat vector."""
    work = w.detach().clone()
    block = slice(None) if only is None else only

    def gradients(x, y, *noise):
        at = work.detach().requires_grad_()
        return (torch.autograd.grad(loss(at, x, y, *noise, *args).mean(), at)[0][block],)
    return work, gradients, lambda flat: [flat[block]]


def compute_gradient(x: Tensor, y: Tensor, weight: Tensor, net: Net, w: Tensor) -> Tensor:
    """Return the gradient (d,) of one client's cross-entropy on a batch, inside vmap."""
    net.module.train()
    grads = grad(lambda parts: (net.loss(parts, x, y) * weight).sum())(net.split(w))
    return torch.cat([flatten_parameter(g) for g in grads])      # by pieces: a slice's own gradient is as long as w


def bind_cohort(net: Net, work: Tensor, only: slice | None):
    """Return (k, x, y, weight) -> gradients of the chosen parameters, and flat -> views like these, for c clients."""
    net.module.train()
    parts = net.split(work)
    chosen = [i for i, name in enumerate(net.names) if only is None or is_inside(net.blocks[name], only)]
    refuse_nothing(chosen, only)

    def loss(moving, parts, x, y, weight):
        parts = list(parts)
        for i, p in zip(chosen, moving, strict=True):
            parts[i] = p
        return (cross_entropy(net(parts, x), y, reduction="none") * weight).sum()
    step = differentiate_each(loss) if is_dense(net) and not work.is_cuda else vmap(grad(loss))

    def gradients(k, x, y, weight):
        now = [p[:k] for p in parts]
        return step([now[i] for i in chosen], now, x, y, weight)

    def views(flat):
        views = net.split(flat)
        return [views[i] for i in chosen]
    return gradients, views


def bind_cohort_loss(loss, work: Tensor, only: slice | None, args):
    """The same for any loss(w, x, y, *args) -> (b,) of the flat vector."""
    block = slice(None) if only is None else only
    step = vmap(grad(lambda w, x, y, weight, *args: (loss(w, x, y, *args) * weight).sum()))

    def gradients(k, x, y, weight, *noise):
        return [step(work[:k], x, y, weight, *noise, *(a[:k] for a in args))[:, block]]
    return gradients, lambda flat: [flat[:, block]]


def differentiate_each(loss):
    """Return (moving, *args) -> the gradients of loss(moving, *args) by each client's own tensors `moving`, (c, ...).

    The same as vmap(grad(loss)): a client's loss does not depend on the others' tensors, so the gradient of the sum is
    each one's own. It takes fewer calls, and does not load PyTorch's compiler, for which torch.func.grad takes seconds.

    For `dense` networks on a CPU. Autograd sees what vmap makes of an operation in place of the operation, and what
    only a backward pass does is lost: that padding does not learn in a table of embeddings, or a user's own. The last
    bits of convolutions would depend on the clients beside. On a GPU the gradient of cross-entropy would become a sum
    whose order is left open."""
    losses = vmap(loss)

    def gradients(moving: list[Tensor], *args) -> list[Tensor]:
        with torch.enable_grad():
            leaves = [p.detach().requires_grad_() for p in moving]
            return list(torch.autograd.grad(losses(leaves, *args).sum(), leaves, materialize_grads=True))
    return gradients


def is_dense(net: Net) -> bool:
    """Say whether a plain network multiplies by matrices alone: no convolutions, no tables of embeddings."""
    tables = any(isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) for layer in net.module.modules())
    return net.plain and not tables and all(len(shape) <= 2 for shape in net.shapes)
