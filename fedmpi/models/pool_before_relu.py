"""Layers in the order that costs least, where the order changes no number."""
from __future__ import annotations

from torch import nn

from fedmpi.torch_compat import computes_in_order

MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


def pool_first(module: nn.Module) -> nn.Module:
    """Move each max-pooling of a Sequential in front of a ReLU that it follows; return the module.

    Outputs and gradients keep their bits: the largest number of a window is the same before and after ReLU, and if it
    is not positive, no gradient passes either way. ReLU then sees a quarter of the pixels (with windows of 2 x 2), and
    on a CPU the gradient reaches the convolution channels-last, without a copy. Names of parameters stay as they are.
    Modules that are not a Sequential stay as they are: their own code may look into the layers.

    The built-in networks are written in this order. Of the CPU time of a step of networks that are written the usual
    way, ReLU first, this saves 8 % for pfl-research's CIFAR10 network, 5 % for cnn4 and 3 % for LeNet-5 (32 x 32
    pixels, batch 10, one core; medians of 20 to 80 pairs of descents that alternated)."""
    if not computes_in_order(module):
        return module
    # a layer may be there more than once
    layers = [(name, layer) for name, layer in module.named_modules(remove_duplicate=False) if name and "." not in name]
    for i in range(len(layers) - 1):
        first, second = layers[i][1], layers[i + 1][1]
        if type(first) is nn.ReLU and type(second) in MAX_POOLS and not second.return_indices:
            layers[i:i + 2] = layers[i + 1], layers[i]
    for name, _ in layers:
        delattr(module, name)
    for name, layer in layers:
        module.add_module(name, pool_first(layer))
    return module
