"""Max-pooling at the least cost: in front of ReLU, and without indices where no gradient needs them. No number changes.

On a CPU it takes more time than the convolutions of a small network."""
from __future__ import annotations

import torch
from torch import Tensor, nn

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


class MaxPool2x2(nn.MaxPool2d):
    """nn.MaxPool2d(2), which on a CPU looks for no indices in passes without gradients. Outputs keep their bits."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the largest number of each window of 2 x 2, (..., h // 2, w // 2), of x (..., h, w)."""
        # PyTorch refuses images of a single pixel.
        if torch.is_grad_enabled() or x.is_cuda or min(x.shape[-2:]) < 2:
            return super().forward(x)
        x = x[..., :x.shape[-2] // 2 * 2, :x.shape[-1] // 2 * 2]
        rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


def skip_indices(module: nn.Module) -> nn.Module:
    """Turn each nn.MaxPool2d(2) of a network into a MaxPool2x2; return the network.

    Layers stay the objects that they are, with their names and hooks. Of the CPU time of a pass of 250 images without
    gradients this saves 38 % for LeNet-5 and 5 % for cnn4 (28 x 28 pixels, one core; medians of 15 alternating pairs),
    of a round of IFCA with LeNet-5 and ten models 28 %."""
    for layer in module.modules():
        if type(layer) is nn.MaxPool2d and halves_images(layer):
            layer.__class__ = MaxPool2x2
    return module


def halves_images(layer: nn.MaxPool2d) -> bool:
    """Say whether a max-pooling is that of nn.MaxPool2d(2)."""
    settings = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return (all(value in (usual, (usual, usual)) for value, usual in zip(settings, (2, 2, 0, 1), strict=True))
            and not layer.ceil_mode and not layer.return_indices)
