"""A network as one flat vector of its parameters, with named blocks that are slices of it.

Layout: first every parameter of the feature extractor (`base`), then the head's; 4-D weights are stored
channels-last (out, height, width, in), the layout in which CPUs and GPUs convolve fastest, so that views of the
flat vector need no copy. Legend: d parameters, b batch, c classes."""
from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmpi.errors import BadInput


class Net:
    """One module and the layout of its flat vector (d,). Calling it is functional: `net(w, x)`."""

    def __init__(self, module: nn.Module, order: list[str] | None = None):
        self.module = module
        parameters = dict(module.named_parameters())
        self.names = order or list(parameters)
        self.shapes = [tuple(parameters[name].shape) for name in self.names]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.size = sum(self.sizes)
        self.blocks = self._blocks()
        self._work = None

    def _blocks(self) -> dict[str, slice]:
        """Map every parameter, and every module that holds some, to its slice where that is one piece."""
        blocks, at = {}, 0
        for name, size in zip(self.names, self.sizes, strict=True):
            blocks[name] = slice(at, at + size)
            layer = name.rpartition(".")[0]
            if layer and (layer not in blocks or blocks[layer].stop == at):
                blocks[layer] = slice(blocks[layer].start if layer in blocks else at, at + size)
            at += size
        return blocks

    def split(self, w: Tensor) -> list[Tensor]:
        """Return one view per parameter, in module layout, of w (..., d)."""
        views, at = [], 0
        for shape, size in zip(self.shapes, self.sizes, strict=True):
            view, at = w.narrow(-1, at, size), at + size
            views.append(as_parameter(view, shape))
        return views

    def flatten(self) -> Tensor:
        """Return the module's present parameters as a flat vector (d,)."""
        parameters = dict(self.module.named_parameters())
        flat = torch.empty(self.size)
        for view, name in zip(self.split(flat), self.names, strict=True):
            view.copy_(parameters[name].detach())
        return flat

    def __call__(self, w, x: Tensor) -> Tensor:
        """Apply the network with parameters w, a flat vector (d,) or the list that `split` returns."""
        parts = self.split(w) if isinstance(w, Tensor) else w
        return torch.func.functional_call(self.module, dict(zip(self.names, parts, strict=True)), (x,))

    def loss(self, w, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of each sample, (b,)."""
        return F.cross_entropy(self(w, x), y, reduction="none")

    def bind(self, w: Tensor) -> Tensor:
        """Copy w into the vector that the module's own parameters are views of, and return that vector.

        The module can then be called without any functional overhead; the vector is reused by the next `bind`."""
        if self._work is None or self._work.device != w.device:
            self._work = torch.empty(self.size, device=w.device)
            self._leaves = [nn.Parameter(view) for view in self.split(self._work)]
            for name, leaf in zip(self.names, self._leaves, strict=True):
                owner, _, last = name.rpartition(".")
                setattr(self.module.get_submodule(owner), last, leaf)
        return self._work.copy_(w)

    def leaf(self, i: int) -> Tensor:
        """Return the i-th bound parameter, for autograd."""
        return self._leaves[i]


def as_parameter(view: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Shape a flat slice (..., size) as a parameter; 4-D weights lie channels-last in it."""
    if len(shape) != 4:
        return view.unflatten(-1, shape) if shape else view.squeeze(-1)
    out, channels, height, width = shape
    return view.unflatten(-1, (out, height, width, channels)).movedim(-1, -3)


def inside(part: slice, block: slice) -> bool:
    return block.start <= part.start and part.stop <= block.stop


class Model(Net):
    """A classifier: the whole network, its feature extractor `base` (without the head) and its `head`.

    The head is the last Linear layer. `start` (d,) holds the initial parameters."""

    def __init__(self, build: Callable[[], nn.Module], example: Tensor, seed: int):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = build()
        head = last_linear(module)
        refuse_buffers(module)
        names = [name for name, _ in module.named_parameters()]
        base = [name for name in names if not name.startswith(head + ".")]
        super().__init__(module, base + [name for name in names if name.startswith(head + ".")])
        self.start = self.flatten()
        self.base, self.head = separate(module, head, base)
        self.phi, self.h = slice(0, self.base.size), slice(self.base.size, self.size)
        self.blocks |= {"base": self.phi, "head": self.h}
        for net in (self, self.base, self.head):
            net.module.eval()      # dropout would make any two results differ
        self._check_parts(example)

    def join(self, phi: Tensor, h: Tensor) -> Tensor:
        """Return the whole vector w = (phi, h)."""
        return torch.cat([phi, h], -1)

    def to(self, device) -> Model:
        """Return the same model with its start on a device; the networks follow the vectors they are given."""
        moved = copy.copy(self)
        moved.start = self.start.to(device)
        return moved

    def block(self, name: str) -> slice:
        """Return a named block's slice. Raises BadInput with the names that there are."""
        if name not in self.blocks:
            layers = [b for b in self.blocks if "." not in b]
            raise BadInput(f"block {name!r} is not part of this model; its blocks are {', '.join(layers)}")
        return self.blocks[name]

    def _check_parts(self, example: Tensor):
        """Refuse a network whose head is not its last operation: its features could not be told apart."""
        with torch.no_grad():
            try:
                whole = self(self.start, example)
            except (RuntimeError, ValueError, TypeError) as error:
                raise BadInput(f"model: the network cannot take samples of shape {tuple(example.shape[1:])}: "
                               f"{str(error).splitlines()[0]}") from None
            try:
                parts = self.head(self.start[self.h], self.base(self.start[self.phi], example))
            except (RuntimeError, ValueError, TypeError):
                parts = whole[:0]
        if whole.shape != parts.shape or not torch.allclose(whole, parts, atol=1e-5):
            raise BadInput("model: the network's last Linear layer is not its last operation, so that features and "
                           "head cannot be told apart; end the network with a Linear layer")


def last_linear(module: nn.Module) -> str:
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not linear or not linear[-1]:
        raise BadInput("model: the network needs a Linear layer as its last one (the head) behind other layers")
    return linear[-1]


def refuse_buffers(module: nn.Module) -> None:
    """BatchNorm's running statistics would be carried from client to client by a reused module."""
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise BadInput(f"model: the network keeps state outside its parameters ({', '.join(buffers[:3])}...), which "
                       "would leak from client to client; use GroupNorm or LayerNorm in place of BatchNorm")


def separate(module: nn.Module, head: str, base_names: list[str]) -> tuple[Net, Net]:
    """Return the network without its head, and the head alone."""
    without = copy.deepcopy(module)
    owner, _, last = head.rpartition(".")
    setattr(without.get_submodule(owner), last, nn.Identity())
    return Net(without, base_names), Net(copy.deepcopy(module.get_submodule(head)))
