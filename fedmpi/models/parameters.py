"""The parameters and running statistics of a module, and how each lies in a flat vector."""
from __future__ import annotations

import torch
from torch import Tensor, nn

from fedmpi.torch_compat import BatchNorm, NormLayers, without_watch

# The running statistics of a BatchNorm layer.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def find_norm_layers(module: nn.Module) -> list[str]:
    """Return the names of all layers that normalise: BatchNorm, GroupNorm, LayerNorm and the like."""
    return [name for name, layer in module.named_modules() if isinstance(layer, NormLayers)]


def collect_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters, followed by its running statistics.

    Counts of batches are dropped: with a fixed momentum nothing needs them, and integers cannot be averaged."""
    for layer in module.modules():
        if isinstance(layer, BatchNorm):
            layer.num_batches_tracked = None
    constants = collect_constants(module)
    return dict(module.named_parameters()) | {
        name: value for name, value in module.named_buffers() if name not in constants}


def list_constants(module: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """List name, layer and attribute of each buffer that is not a running statistic, such as a positional encoding."""
    return [(name, layer, name.rpartition(".")[2]) for prefix, layer in module.named_modules()
            for name, _ in layer.named_buffers(prefix, recurse=False)
            if not (isinstance(layer, BatchNorm) and name.endswith(STATISTICS))]


def collect_constants(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's buffers that are not running statistics. Each copy of the network has them by itself."""
    return {name: getattr(layer, attribute) for name, layer, attribute in list_constants(module)}


def is_same(one: Tensor | None, other: Tensor | None) -> bool:
    """Say whether two tensors have the same type and the same numbers."""
    return one is not None and other is not None and one.dtype == other.dtype and torch.equal(one, other)


class Constants:
    """The constants of a module, which are not part of its vector, and follow the samples from device to device.

    What a device was given stays there: CUDA graphs go on to read it.

    Args:
        found: what list_constants returns."""

    def __init__(self, found: list[tuple[str, nn.Module, str]]):
        self._held = [(layer, attribute, {getattr(layer, attribute).device: getattr(layer, attribute)})
                      for _, layer, attribute in found]

    def follow(self, device: torch.device) -> None:
        """Let the module hold its constants on a device."""
        for layer, attribute, copies in self._held:
            value = getattr(layer, attribute)
            if value.device != device:
                if device not in copies:
                    copies[device] = value.to(device)
                setattr(layer, attribute, copies[device])


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


def hide_statistics(held: Tensor, trained: Tensor | None, training: bool, differentiated: bool) -> Tensor:
    """Return the running statistics that a forward pass uses, hidden from autograd. In training it moves them in place.

    Args:
        held: those of the vector that the pass is given.
        trained: those that it moves if that vector is differentiated; None: `held`. See engines.trained_statistics."""
    if not training:
        return held.detach()
    return without_watch(held if trained is None else trained) if differentiated else held.detach().clone()
