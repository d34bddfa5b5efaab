"""The parameters and running statistics of a module, and how each lies in a flat vector."""
from __future__ import annotations

from torch import Tensor, nn

from fedmpi.torch_compat import BatchNorm, NormLayers


def find_norm_layers(module: nn.Module) -> list[str]:
    """Return the names of all layers that normalise: BatchNorm, GroupNorm, LayerNorm and the like."""
    return [name for name, layer in module.named_modules() if isinstance(layer, NormLayers)]


def collect_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters, followed by its running statistics.

    Counts of batches are dropped: with a fixed momentum nothing needs them, and integers cannot be averaged."""
    for layer in module.modules():
        if isinstance(layer, BatchNorm):
            layer.num_batches_tracked = None
    return dict(module.named_parameters()) | dict(module.named_buffers())


def find_holders(module: nn.Module, held: dict[str, Tensor]) -> dict[str, list[tuple[nn.Module, str]]]:
    """Return the layers that hold each of these tensors, and as which attribute; several layers may share one."""
    names = {id(value): name for name, value in held.items()}
    found: dict[str, list[tuple[nn.Module, str]]] = {name: [] for name in held}
    for layer in module.modules():
        own = {"recurse": False, "remove_duplicate": False}
        for attribute, value in [*layer.named_parameters(**own), *layer.named_buffers(**own)]:
            if id(value) in names:
                found[names[id(value)]].append((layer, attribute))
    return found


def shape_parameter(view: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Shape a flat slice (..., size) as a parameter; 4-D weights lie channels-last in it."""
    if len(shape) != 4:
        return view.unflatten(-1, shape) if shape else view.squeeze(-1)
    out, channels, height, width = shape
    return view.unflatten(-1, (out, height, width, channels)).movedim(-1, -3)


def flatten_parameter(parameter: Tensor) -> Tensor:
    """Return a parameter as it lies in a flat vector."""
    return (parameter.movedim(-3, -1) if parameter.ndim == 4 else parameter).flatten()
