"""One step of cnn4 for many clients, layer by layer, without autograd: a candidate for an engine.

Images have the layout (c, b, height, width, channels), weights of a convolution (c, positions * channels, o). So the
product of patches and weights needs no copy of the weights, and the product that computes a weight's gradient adds it
to the weight.
Legend: c clients, b batch, o channels out."""
from __future__ import annotations

import torch
from torch import Tensor

# Kernel, stride, padding and dilation of max-pooling.
POOL = ([2, 2], [2, 2], [0, 0], [1, 1])


class HandMade:
    """Holds the weights of c clients, one row each; `aligned` rows are a multiple of 64 numbers apart."""

    def __init__(self, module, clients: int, device: str, aligned: bool = True):
        found = {name: p.detach() for name, p in module.named_parameters()}
        self.kernels = {name: found[f"{name}.weight"].shape for name in ("conv1", "conv2")}
        self.pixels = found["fc1.weight"].shape[1] // self.kernels["conv2"][0]
        flat = {name: self.laid(name, p) for name, p in found.items()}
        size = sum(p.numel() for p in flat.values())
        stride = -(-size // 64) * 64 if aligned else size
        self.flat = torch.empty(clients, stride, device=device)[:, :size]
        self.w, at = {}, 0
        for name, p in flat.items():
            view = self.flat[:, at:at + p.numel()].unflatten(1, p.shape)
            view.copy_(p)
            self.w[name], at = view, at + p.numel()

    def laid(self, name: str, p: Tensor) -> Tensor:
        """Return a parameter of the module in the layout that is used here."""
        if p.ndim == 4:
            return p.permute(2, 3, 1, 0).flatten(0, 2)
        if name == "fc1.weight":
            return p.view(len(p), -1, self.pixels).permute(2, 1, 0).flatten(0, 1)
        return p.T if p.ndim == 2 else p[None]

    def step(self, x: Tensor, y: Tensor, lr: float) -> None:
        """Take an SGD step on images (c, b, height, width, channels) and labels (c, b)."""
        w, b = self.w, x.shape[1]
        patches1, pooled1, index1, out1 = self.convolve("conv1", x)
        patches2, pooled2, index2, out2 = self.convolve("conv2", pooled1)
        features = pooled2.flatten(2)
        hidden = torch.baddbmm(w["fc1.bias"], features, w["fc1.weight"]).relu_()
        g = torch.baddbmm(w["fc2.bias"], hidden, w["fc2.weight"]).softmax(-1)
        g.scatter_add_(2, y[..., None], g.new_full((), -1.).expand(*y.shape, 1)).div_(b)
        g = self.linear_backward("fc2", hidden, g, lr) * (hidden > 0)
        g = self.linear_backward("fc1", features, g, lr).view_as(pooled2) * (pooled2 > 0)
        g = self.convolution_backward("conv2", patches2, unpool(g, index2, out2), lr, pooled1.shape)
        g = g * (pooled1 > 0)
        self.convolution_backward("conv1", patches1, unpool(g, index1, out1), lr, None)

    def convolve(self, name: str, x: Tensor):
        """Return the patches, the ReLU of the pooled output, the indices of the maxima, and the unpooled output."""
        o, i, kh, kw = self.kernels[name]
        c, b, height, width, _ = x.shape
        # (c, b, height, width, kh, kw, i)
        windows = x.unfold(2, kh, 1).unfold(3, kw, 1).movedim(4, -1)
        patches = windows.reshape(c, b * (height - kh + 1) * (width - kw + 1), kh * kw * i)
        rows = torch.baddbmm(self.w[f"{name}.bias"], patches, self.w[f"{name}.weight"])
        # channels last in memory
        out = rows.view(c * b, height - kh + 1, width - kw + 1, o).permute(0, 3, 1, 2)
        pooled, index = torch.ops.aten.max_pool2d_with_indices(out, *POOL[:3], POOL[3])
        pooled = pooled.permute(0, 2, 3, 1).unflatten(0, (c, b)).relu()
        return patches, pooled, index, out

    def linear_backward(self, name: str, x: Tensor, g: Tensor, lr: float) -> Tensor:
        # before the weights change
        back = torch.bmm(g, self.w[f"{name}.weight"].mT)
        self.move(name, x, g, lr)
        return back

    def convolution_backward(self, name: str, patches: Tensor, g: Tensor, lr: float, shape) -> Tensor | None:
        """Update a convolution's weights by gradients g (c, b, height, width, o); return those of its input."""
        o, i, kh, kw = self.kernels[name]
        c, b, height, width, _ = g.shape
        rows, back = g.reshape(c, -1, o), None
        if shape is not None:
            parts = torch.bmm(rows, self.w[f"{name}.weight"].mT).view(c, b, height, width, kh, kw, i)
            back = parts.new_zeros(shape)
            for row in range(kh):
                for column in range(kw):
                    back[:, :, row:row + height, column:column + width].add_(parts[:, :, :, :, row, column])
        self.move(name, patches, rows, lr)
        return back

    def move(self, name: str, x: Tensor, g: Tensor, lr: float) -> None:
        """Add -lr times the gradients to weights and biases, within the product that computes them."""
        self.w[f"{name}.weight"].baddbmm_(x.mT, g, alpha=-lr)
        self.w[f"{name}.bias"].add_(g.sum(1, keepdim=True), alpha=-lr)


def unpool(g: Tensor, index: Tensor, out: Tensor) -> Tensor:
    """Return the gradient of max-pooling's input (c, b, height, width, o), given g (c, b, height / 2, width / 2, o)."""
    c, b = g.shape[:2]
    back = torch.ops.aten.max_pool2d_with_indices_backward(
        g.flatten(0, 1).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last), out, *POOL, False, index)
    return back.permute(0, 2, 3, 1).unflatten(0, (c, b))
