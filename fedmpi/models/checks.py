"""Refuse networks that fail, and those whose outputs depend on more than a flat vector, or its blocks, would hold."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from fedmpi.errors import BadInput, FaultyCode
from fedmpi.own_code.failures import blame_own_code, describe_failure, find_own_line
from fedmpi.torch_compat import BatchNorm


def refuse_buffers(module: nn.Module, policy: str | None) -> None:
    """Refuse buffers, which a reused module would carry from client to client. Raises BadInput.

    Args:
        policy: whose the running statistics of BatchNorm are: `local` (each client's own) or `average`. With None they
            are refused like all other buffers."""
    welcome = [f"{name}." if name else "" for name, layer in module.named_modules()
               if policy and isinstance(layer, BatchNorm) and layer.momentum is not None]
    known = {f"{name}{kind}" for name in welcome for kind in ("running_mean", "running_var", "num_batches_tracked")}
    buffers = [name for name, _ in module.named_buffers() if name not in known]
    if buffers:
        raise BadInput(f"model: the network keeps state outside its parameters ({', '.join(buffers[:3])}...), which "
                       "would leak from client to client; use GroupNorm or LayerNorm in place of BatchNorm")


def refuse_unfit_parameters(module: nn.Module) -> None:
    """Refuse parameters that a flat vector of float32, all of which is trained, cannot stand for. Raises BadInput."""
    for name, value in module.named_parameters():
        if isinstance(value, UninitializedParameter):
            raise BadInput(f"model: {name} has no shape before the first forward pass; give the layer its number of "
                           "inputs (nn.Linear in place of nn.LazyLinear)")
        if not value.is_floating_point():
            raise BadInput(f"model: {name} is of type {value.dtype}; all parameters must be floating-point numbers")
        if not value.requires_grad:
            raise BadInput(f"model: {name} is frozen (requires_grad=False), but a run trains all parameters; leave "
                           "requires_grad as it is, or compute the outputs of the frozen layers beforehand and store "
                           "them as the data's features")
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            raise BadInput(f"model: {name} has max_norm, by which a forward pass changes parameters; leave it out")


def refuse_shared(names: list[str], held: dict[str, Tensor]) -> None:
    """Refuse a network whose base and head share weights, since each would have its own. Raises BadInput."""
    if shared := [name for name in names if name not in held]:
        raise BadInput(f"model: layers share weights ({', '.join(shared)}) so that the network cannot be cut into a "
                       "feature extractor and a head; give each its own")


def try_network(network: Callable[[Tensor, Tensor], Tensor], w: Tensor, example: Tensor) -> Tensor:
    """Return the outputs of a network for some samples. Raises BadInput unless they are a tensor of finite numbers, and
    FaultyCode if the network's own code fails.

    Args:
        network: called with w (d,) and the samples.
        example: samples as the network takes them, (b, ...)."""
    shape = tuple(example.shape[1:])
    with blame_own_code(f"model: the network cannot take samples of shape {shape}"):
        try:
            outputs = network(w, example)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            why = f"model: the network cannot take samples of shape {shape}: {describe_failure(error)}"
            if find_own_line(error):
                raise FaultyCode(why) from error
            words = "; the samples are numbers of words, which need a network such as model=fasttext"
            raise BadInput(why + words * (not example.is_floating_point())) from error
    if not isinstance(outputs, Tensor):
        has_logits = isinstance(getattr(outputs, "logits", None), Tensor)
        remedy = "return its .logits" if has_logits else "return the tensor of logits (b, classes) alone"
        raise BadInput(f"model: the network's forward gives a {type(outputs).__name__}, not a tensor; {remedy}")
    if not torch.isfinite(outputs).all():
        raise BadInput(f"model: the network's first outputs are not finite (NaN or infinite) for samples of shape "
                       f"{shape}; look at its initial weights, and at divisions in its forward")
    return outputs


def try_single_sample(network: Callable[[Tensor, Tensor], Tensor], w: Tensor, example: Tensor) -> None:
    """Try a network with BatchNorm on a single sample, since a client's last batch may hold no more. Raises BadInput if
    it cannot take it: without running statistics, a single value per channel has no variance.

    Args:
        network: called with w (d,) and the samples, not in training.
        example: samples that the network can take together, (b, ...)."""
    try:
        network(w, example[:1])
    except ValueError as error:
        raise BadInput("model: the network cannot take a single sample, which is all that a client's last batch may "
                       f"hold: {describe_failure(error)}; let its BatchNorm keep running statistics "
                       "(track_running_stats=True), or use GroupNorm or LayerNorm") from error
