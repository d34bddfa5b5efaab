"""Two ways to compute the convolutions of engine `vmap`, in which every client has its own weights.

PyTorch makes them grouped convolutions, whose gradients are slow on some GPUs. The other way multiplies patches of the
image by the weights. On a GPU each layer takes the faster way, timed once per run (preparation.choose_convolutions). On
a CPU grouped convolutions are at least as fast (cnn4, lenet5) and stay.

Legend: c clients, b batch, i channels in, o channels out, l positions of the kernel."""
from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedmpi.engines.gpu_errors import give_memory_back, is_out_of_memory
from fedmpi.engines.gpu_waiting import wait_for_device
from fedmpi.models.build import as_input
from fedmpi.models.flat import Model
from fedmpi.models.precision import run_forward
from fedmpi.torch_compat import is_plain_convolution, replace_forward

# Engine `vmap` trains at most so many clients together.
MAX_CLIENTS_AT_ONCE = 128
# How often a layer's forward and backward pass is taken for a timing; the first two times warm up.
TIMING_REPEATS = 5


def convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Apply a layer to x (b, i, height, width) as one product of patches and weights per client."""
    # (b, i * kernel, l)
    patches = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    rows = patches.transpose(1, 2).flatten(0, 1) @ layer.weight.flatten(1).T
    if layer.bias is not None:
        rows = rows + layer.bias
    reach = layer.dilation[0] * (layer.kernel_size[0] - 1)
    height = (x.shape[2] + 2 * layer.padding[0] - reach - 1) // layer.stride[0] + 1
    return rows.unflatten(0, (len(x), height, -1)).movedim(-1, 1)


def can_convolve(layer: nn.Module) -> bool:
    """Say whether `convolve` can take a layer's place."""
    return (is_plain_convolution(layer) and layer.groups == 1 and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str))


def use_unfolded(model: Model, names: Iterable[str]) -> AbstractContextManager[None]:
    """Return a context in which `convolve` computes these layers of a model, of its feature extractor and its head."""
    modules = [dict(net.module.named_modules()) for net in (model, model.base, model.head)]
    return replace_forward([found[name] for found in modules for name in names if name in found], convolve)


def list_convolutions(model: Model) -> list[str]:
    """Return the names of the layers that `convolve` can compute; they are the same on all ranks."""
    return [name for name, layer in model.module.named_modules() if can_convolve(layer)]


def time_layers(model: Model, x: Tensor | None, batch: int, clients: int) -> np.ndarray:
    """Return the seconds of both ways for each layer, (2, layers): grouped, and by `convolve`; inf if there is no
    memory for that way.

    Args:
        x: a stored sample (1, ...), of which batches are made; None returns zeros.
        batch: samples per client.
        clients: clients at once, cut to MAX_CLIENTS_AT_ONCE."""
    layers = list_convolutions(model)
    found = np.zeros((2, len(layers)))
    if x is None:
        return found
    shapes = record_input_shapes(model, as_input(x))
    for i, name in enumerate(layers):
        if name in shapes:
            rows, *image = shapes[name]
            given = (rows * batch, *image), min(clients, MAX_CLIENTS_AT_ONCE), x.device
            layer = model.module.get_submodule(name)
            found[0, i] = time_if_it_fits(layer, *given)
            with use_unfolded(model, [name]):
                found[1, i] = time_if_it_fits(layer, *given)
    return found


def choose_unfolded(model: Model, x: Tensor, batch: int, clients: int) -> list[str]:
    """Return the names of the layers that `convolve` computes faster here and now."""
    return [
        name
        for name, (grouped, patches) in zip(
            list_convolutions(model), time_layers(model, x, batch, clients).T, strict=True
        )
        if patches < grouped
    ]


def record_input_shapes(model: Model, x: Tensor) -> dict[str, tuple[int, ...]]:
    """Return the shape of the input of each layer that `convolve` can compute, by the layer's name."""
    shapes: dict[str, tuple[int, ...]] = {}
    hooks = []
    for name, layer in model.module.named_modules():
        if can_convolve(layer):
            hooks.append(layer.register_forward_pre_hook(
                lambda layer, given, name=name: shapes.__setitem__(name, tuple(given[0].shape))))
    try:
        with torch.no_grad():
            model(model.start, x)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


def time_if_it_fits(layer: nn.Conv2d, shape: tuple[int, ...], clients: int, device: torch.device) -> float:
    """Return the seconds of `time_layer`; inf if memory is too small for it."""
    try:
        return time_layer(layer, shape, clients, device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    give_memory_back()
    return np.inf


def time_layer(layer: nn.Conv2d, shape: tuple[int, ...], clients: int, device: torch.device) -> float:
    """Return the seconds of forward and backward passes in which each client has its own weights."""
    weights = {name: torch.randn(clients, *p.shape, device=device) for name, p in layer.named_parameters()}
    x = torch.randn(clients, *shape, device=device)

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return run_forward(partial(functional_call, layer, weights), x).square().sum()
    step = vmap(grad(loss, (0, 1)))
    for repeat in range(TIMING_REPEATS):
        if repeat == 2:
            wait_for_device(device)
            begin = time.perf_counter()
        step(weights, x)
    wait_for_device(device)
    return time.perf_counter() - begin
