"""Layers in the order that costs least, where the order changes no number."""
from __future__ import annotations

from torch import nn

MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


def pool_first(module: nn.Module) -> nn.Module:
    """Move each max-pooling of a Sequential in front of a ReLU that it follows; return the module.

    Outputs and gradients keep their bits: the largest of a window is the same before and after ReLU, and where it is
    not positive, no gradient passes either way. ReLU then sees a quarter of the pixels (of a 2 x 2 window), and on a
    CPU the gradient reaches the convolution channels-last, without a copy. Names of parameters stay as they are.
    Only where a Sequential is all there is, and what is in it: other modules may look into theirs."""
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        return module
    layers = list(module._modules.items())
    for i in range(len(layers) - 1):
        first, second = layers[i][1], layers[i + 1][1]
        if type(first) is nn.ReLU and type(second) in MAX_POOLS and not second.return_indices:
            layers[i:i + 2] = layers[i + 1], layers[i]
    module._modules = dict(layers)
    for _, layer in layers:
        pool_first(layer)
    return module
