"""How engines compute gradients: of a network or of a loss of a method's own, for one client or for c at once.

Each `bind_...` function returns what computes the gradients of a batch, and `views`, which returns the parts of a flat
vector in the order of these gradients. Legend: c clients, k of them active, d parameters, b batch."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedmpi.engines.trained_statistics import train_statistics
from fedmpi.errors import BadInput
from fedmpi.models.flat import Model, Net
from fedmpi.models.losses import compute_loss
from fedmpi.models.parameters import flatten_parameter
from fedmpi.models.precision import run_forward
from fedmpi.models.slices import is_inside
from fedmpi.torch_compat import compute_gradients

# A loss of a method's own: loss(w, x, y, *args) -> (b,), differentiated by the flat vector w (d,).
Loss = Callable[..., Tensor]
# Compute the gradients of a batch, and take the parts of a flat vector in the order of these gradients.
Gradients = Callable[..., Sequence[Tensor]]
Views = Callable[[Tensor], list[Tensor]]


def is_empty(only: slice | None) -> bool:
    """Say whether a block is empty, as the feature extractor of a network of a single layer is."""
    return only is not None and only.start == only.stop


def refuse_nothing(chosen: list[int], only: slice | None) -> None:
    """Refuse a block that holds no whole parameter. Raises BadInput."""
    if not chosen:
        raise BadInput(f"method: data.descend(only={only}): this part of the vector holds no parameter of the network "
                       "as a whole, so that nothing would move; take a block of the model")


def select_views(net: Net, chosen: list[int]) -> Views:
    """Return what takes these parameters out of a flat vector (d,) or (c, d)."""
    def views(flat: Tensor) -> list[Tensor]:
        parts = net.split(flat)
        return [parts[i] for i in chosen]
    return views


def bind_module(net: Net, w: Tensor, only: slice | None, smoothing: float) -> tuple[Tensor, Gradients, Views]:
    """Copy w into the module's parameters.

    Returns the vector that these are views of, what computes the gradients of a batch (x, y), and `views`.

    Args:
        smoothing: of the labels, see losses.compute_loss."""
    work = net.bind(w)
    chosen = net.moving(only)
    refuse_nothing(chosen, only)
    leaves = [net.parameter(i) for i in chosen]

    def gradients(x: Tensor, y: Tensor) -> Sequence[Tensor]:
        net.train(len(y))
        loss = compute_loss(run_forward(net.module, x), y, smoothing=smoothing)
        # A pass need not use all layers.
        return compute_gradients(loss, leaves)
    return work, gradients, select_views(net, chosen)


def bind_loss(loss: Loss, w: Tensor, only: slice | None, args: Sequence[Tensor],
              model: Model | None, trained: Net | None) -> tuple[Tensor, Gradients, Views]:
    """Return the same for a loss of a method's own, differentiated by the flat vector.

    Args:
        model: the run's network, which the loss may call and which is set to training; None: it calls none.
        trained: the network of which w is the vector; None: w is that of none.

    Raises:
        TypeError: if args are not a sequence of tensors."""
    if isinstance(args, Tensor):
        raise TypeError("args is a tensor and not a tuple of tensors; write args=(tensor,)")
    work = w.detach().clone()
    block = slice(None) if only is None else only

    def gradients(x: Tensor, y: Tensor, *noise: Tensor) -> Sequence[Tensor]:
        if model is not None:
            model.train_all(len(y))
        with train_statistics(trained, work):
            return (differentiate_loss(loss, work, x, y, (*noise, *args))[block],)
    return work, gradients, lambda flat: [flat[block]]


def differentiate_loss(loss: Loss, w: Tensor, x: Tensor, y: Tensor, args: Sequence[Tensor]) -> Tensor:
    """Return the gradient (d,) of the mean of a loss of a method's own on a batch."""
    at = w.detach().requires_grad_()
    return torch.autograd.grad(check_losses(loss(at, x, y, *args), y).mean(), at)[0]


def check_losses(losses: Tensor, y: Tensor) -> Tensor:
    """Return what a loss of a method's own gave for a batch with labels y (b, ...). Raises TypeError unless this is a
    loss of each sample, (b,): a mean over the batch would count the samples that pad it."""
    if not isinstance(losses, Tensor) or losses.shape != y.shape[:1]:
        given = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise TypeError(f"a loss of your own returns the loss of each sample, ({len(y)},), and not {given}: take no "
                        'mean over the batch, as by reduction="none"')
    return losses


def compute_gradient(x: Tensor, y: Tensor, weight: Tensor, smoothing: float, net: Net, w: Tensor) -> Tensor:
    """Return the gradient (d,) of one client's cross-entropy on a batch, inside vmap."""
    net.module.train()
    grads = grad(lambda parts: (net.loss(parts, x, y, smoothing) * weight).sum())(net.split(w))
    # piece by piece: the gradient of a slice of w would be as long as w
    return torch.cat([flatten_parameter(g) for g in grads])


def compute_own_gradient(x: Tensor, y: Tensor, weight: Tensor, loss: Loss, w: Tensor, args: Sequence[Tensor]) -> Tensor:
    """Return the gradient (d,) of one client's mean of a loss of a method's own on a batch, inside vmap."""
    found: Tensor = grad(lambda w: (check_losses(loss(w, x, y, *args), y) * weight).sum())(w)
    return found


def bind_cohort(net: Net, work: Tensor, only: slice | None, smoothing: float) -> tuple[Gradients, Views]:
    """Return what computes the first k clients' gradients of a batch (k, x, y, weight), and `views`.

    Args:
        work: the weights of all c clients (c, d), which move in place.
        smoothing: of the labels, see losses.compute_loss."""
    net.module.train()
    parts = net.split(work)
    chosen = [i for i, name in enumerate(net.names) if only is None or is_inside(net.blocks[name], only)]
    refuse_nothing(chosen, only)

    def loss(moving: list[Tensor], parts: list[Tensor], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        parts = list(parts)
        for i, p in zip(chosen, moving, strict=True):
            parts[i] = p
        return (compute_loss(net(parts, x), y, "none", smoothing) * weight).sum()
    step = differentiate_each(loss) if is_dense(net) and not work.is_cuda else vmap(grad(loss))

    def gradients(k: int, x: Tensor, y: Tensor, weight: Tensor) -> Sequence[Tensor]:
        now = [p[:k] for p in parts]
        return step([now[i] for i in chosen], now, x, y, weight)
    return gradients, select_views(net, chosen)


def bind_cohort_loss(loss: Loss, work: Tensor, only: slice | None, args: Sequence[Tensor],
                     model: Model | None) -> tuple[Gradients, Views]:
    """Return the same for a loss of a method's own; args are tensors (c, ...), and `model` is as for `bind_loss`."""
    if model is not None:
        # Engine vmap trains no network with running statistics, so the samples of a batch do not matter.
        model.train_all(2)
    block = slice(None) if only is None else only
    step = vmap(grad(lambda w, x, y, weight, *args: (check_losses(loss(w, x, y, *args), y) * weight).sum()))

    def gradients(k: int, x: Tensor, y: Tensor, weight: Tensor, *noise: Tensor) -> Sequence[Tensor]:
        return [step(work[:k], x, y, weight, *noise, *(a[:k] for a in args))[:, block]]
    return gradients, lambda flat: [flat[:, block]]


def differentiate_each(loss: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """Return (moving, *args) -> gradients of loss(moving, *args) by each client's own tensors `moving` (c, ...).

    This computes vmap(grad(loss)): a client's loss does not depend on the others' tensors, so the gradient of the sum
    holds each client's own. It takes fewer calls, and it does not load PyTorch's compiler, for which torch.func.grad
    takes seconds.

    It is for `is_dense` networks on a CPU. Autograd sees what vmap makes of an operation and not the operation itself,
    so anything that only a backward pass does is lost, such as the padding row of an embedding that does not learn. The
    last bits of convolutions would depend on the other clients. On a GPU the gradient of cross-entropy would be a sum
    in an unspecified order."""
    losses = vmap(loss)

    def gradients(moving: list[Tensor], *args: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            leaves = [p.detach().requires_grad_() for p in moving]
            return list(compute_gradients(losses(leaves, *args).sum(), leaves))
    return gradients


def is_dense(net: Net) -> bool:
    """Say whether a plain network only multiplies by matrices, without convolutions and embedding tables."""
    tables = any(isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) for layer in net.module.modules())
    return net.plain and not tables and all(len(shape) <= 2 for shape in net.shapes)
