"""A network as one flat vector of its parameters, with named blocks that are slices of it.

The vector begins with the parameters of the feature extractor (`base`) and ends with those of the head. The running
statistics of BatchNorm layers follow the parameters of their part, so a vector holds all on which an output depends.
4-D weights are stored channels-last (out, height, width, in). CPUs and GPUs convolve fastest in this layout, and views
of the flat vector then need no copy. Legend: d entries of the vector, b batch, c classes."""
from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from fedmpi.errors import BadInput
from fedmpi.models.checks import (
    check_parts,
    refuse_drawn_constants,
    refuse_shared,
    refuse_statistics,
    refuse_unfit_parameters,
)
from fedmpi.models.losses import compute_loss
from fedmpi.models.parameters import (
    Constants,
    collect_constants,
    collect_tensors,
    find_holders,
    find_norm_layers,
    hide_statistics,
    list_constants,
    shape_parameter,
)
from fedmpi.models.precision import run_forward
from fedmpi.models.seeding import build_seeded
from fedmpi.models.slices import is_inside, join_slices, remove_slices
from fedmpi.models.split import split_module
from fedmpi.torch_compat import BatchNorm, has_known_forward, lend_tensors

# Distance between the seeds of several initial vectors.
START_SEED_STRIDE = 0x5EED_0000
# Copying a vector of so many numbers takes longer than making views of a new one.
LARGE_VECTOR_SIZE = 1 << 18


class Net:
    """One module and the layout of its flat vector (d,). Calling it is functional: `net(w, x)`.

    If a module only uses its samples as row numbers of an nn.Embedding, its attribute `lookup` may name that layer.
    `table` is then the block of these rows, and plain SGD on a CPU moves only those that a batch names.

    `buffers` lists the slices of running statistics. Forward passes move them in training, gradients do not.
    `trainable` lists the slices of all parameters."""

    def __init__(self, module: nn.Module, order: list[str] | None = None):
        self.module = module
        held = collect_tensors(module)
        self.names = order or list(held)
        self.shapes = [tuple(held[name].shape) for name in self.names]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.size = sum(self.sizes)
        self.buffer_names = {name for name in self.names if not isinstance(held[name], nn.Parameter)}
        self.blocks = self._blocks()
        self.buffers = join_slices([self.blocks[name] for name in self.names if name in self.buffer_names])
        self.trainable = remove_slices([slice(0, self.size)], self.buffers)
        # What train_statistics lets passes move, by the names of the whole network, where this one's have a prefix.
        self.trained, self.prefix = dict[str, Tensor](), ""
        # A network of one's own may call anything else so.
        named = getattr(module, "lookup", None)
        self._lookup = named if isinstance(named, str) and f"{named}.weight" in self.blocks else None
        self.table = self.blocks[f"{self._lookup}.weight"] if self._lookup else None
        # the vector that `bind` made; None: the next `bind` makes one
        self._work: Tensor | None = None
        self._holders = find_holders(module, held)
        constants = list_constants(module)
        self._constants = Constants(constants) if constants else None

    def _blocks(self) -> dict[str, slice]:
        """Map every parameter, and every module that holds some, to its slice if that is one piece."""
        found: dict[str, list[slice]] = {}
        at = 0
        for name, size in zip(self.names, self.sizes, strict=True):
            layers = accumulate(name.split("."), "{}.{}".format)
            for layer in [name] if name in self.buffer_names else layers:
                found.setdefault(layer, []).append(slice(at, at + size))
            at += size
        return {name: slice(parts[0].start, parts[-1].stop) for name, parts in found.items()
                if all(a.stop == b.start for a, b in pairwise(parts))}

    def split(self, w: Tensor) -> list[Tensor]:
        """Return one view per parameter and statistic, in module layout, of w (..., d)."""
        # A single operation: its gradient is one vector, not one for each parameter.
        pieces = w.split(self.sizes, -1)
        return [shape_parameter(piece, shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def flatten(self) -> Tensor:
        """Return what the module holds now as a flat vector (d,)."""
        held = collect_tensors(self.module)
        flat = torch.empty(self.size)
        for view, name in zip(self.split(flat), self.names, strict=True):
            view.copy_(held[name].detach())
        return flat

    def __call__(self, w: Tensor | list[Tensor], x: Tensor) -> Tensor:
        """Apply the network with parameters w, a flat vector (d,) or the list that `split` returns.

        In training mode it moves running statistics, see engines.trained_statistics."""
        parts = self.split(w) if isinstance(w, Tensor) else w
        if self.buffers:
            moves = torch.is_grad_enabled() and (not isinstance(w, Tensor) or w.requires_grad)
            parts = [hide_statistics(p, self.trained.get(self.prefix + name), self.module.training, moves)
                     if name in self.buffer_names else p for name, p in zip(self.names, parts, strict=True)]
        if self._constants:
            self._constants.follow(x.device)
        with lend_tensors((self._holders[name], part) for name, part in zip(self.names, parts, strict=True)):
            return run_forward(self.module, x)

    def loss(self, w: Tensor | list[Tensor], x: Tensor, y: Tensor, smoothing: float = 0.) -> Tensor:
        """Return the loss of each sample, (b,), in training mode; `smoothing` is that of its label."""
        self.train(len(y))
        return compute_loss(self(w, x), y, reduction="none", smoothing=smoothing)

    def bind(self, w: Tensor) -> Tensor:
        """Copy w into the vector that the module's own parameters are views of, and return that vector.

        The module can then be called without functional overhead. The next `bind` reuses the vector."""
        if self._work is None or self._work.device != w.device:
            self._work = torch.empty(self.size, device=w.device)
            self._leaves = [view if name in self.buffer_names else nn.Parameter(view)
                            for name, view in zip(self.names, self.split(self._work), strict=True)]
        # Another network may share the module, see Model.to.
        if not self._held():
            for name, leaf in zip(self.names, self._leaves, strict=True):
                for layer, attribute in self._holders[name]:
                    setattr(layer, attribute, leaf)
        if self._constants:
            self._constants.follow(w.device)
        return self._work.copy_(w)

    def _held(self) -> bool:
        """Say whether the module's parameters are views of this network's vector. Either all are, or none."""
        pairs = zip(self.names, self._leaves, strict=True)
        return next((getattr(*at) is leaf for name, leaf in pairs for at in self._holders[name]), True)

    def release(self) -> Tensor:
        """Return what the bound vector holds now, as a vector that belongs to the caller."""
        work = self._work
        # `bind` was called before.
        assert work is not None
        if self.size < LARGE_VECTOR_SIZE or work.is_cuda:
            return work.clone()
        # the next `bind` makes a new vector, which is less work than a copy
        self._work = None
        return work

    def moving(self, only: slice | None) -> list[int]:
        """Return the positions in `names` of the parameters that SGD moves: all, or those inside a block."""
        return [i for i, name in enumerate(self.names) if name not in self.buffer_names
                and (only is None or is_inside(self.blocks[name], only))]

    def train(self, b: int) -> None:
        """Set the module to training on b samples. One sample has no statistics, so the running ones serve for it."""
        if self.module.training != (b > 1 or not self.buffers):
            self.module.train(not self.module.training)

    def parameter(self, i: int) -> Tensor:
        """Return the i-th bound parameter, for autograd."""
        return self._leaves[i]

    @cached_property
    def plain(self) -> bool:
        """Say whether all layers are PyTorch's or fedmpi's; the forward passes of others may do anything."""
        return all(map(has_known_forward, self.module.modules()))

    @cached_property
    def has_batchnorm(self) -> bool:
        """Say whether it has BatchNorm layers, with or without running statistics: in training, each output depends on
        the whole batch."""
        return any(isinstance(layer, BatchNorm) for layer in self.module.modules())

    @cached_property
    def convolves(self) -> bool:
        """Say whether it has convolutions of images."""
        return any(len(shape) == 4 for shape in self.shapes)

    @cached_property
    def lookup(self) -> nn.Embedding:
        """Return the layer that holds the table."""
        return self.module.get_submodule(self._lookup)

    @cached_property
    def behind_table(self) -> Net:
        """Return the network behind the table, whose samples are the rows themselves."""
        # This is called for networks with a table only.
        assert self._lookup is not None
        copied = copy.deepcopy(self.module)
        owner, _, last = self._lookup.rpartition(".")
        setattr(copied.get_submodule(owner), last, nn.Identity())
        del copied.lookup
        return Net(copied, [name for name in self.names if name != f"{self._lookup}.weight"])


class Model(Net):
    """A classifier: the whole network, its feature extractor `base` and its `head`.

    `classes` is the number of its outputs, and `width` that of the features of a sample, which `features` returns.

    Args:
        build: returns a new module.
        example: two samples as the network takes them.
        seed: the run's; seeds the initial parameters, `start` (d,).
        head: names of the head's blocks; none: the last Linear layer.
        policy: whose the running statistics are, see refuse_statistics."""

    def __init__(self, build: Callable[[], nn.Module], example: Tensor, seed: int, head: tuple[str, ...] = (),
                 policy: str | None = None):
        module = build_seeded(build, seed)
        refuse_unfit_parameters(module)
        refuse_statistics(module, policy)
        self.policy = policy
        base, last, prefix = split_module(module, head)
        self.base, self.head = Net(base), Net(last)
        names = self.base.names + [prefix + name for name in self.head.names]
        refuse_shared(names, collect_tensors(module))
        super().__init__(module, names)
        self.base.trained, self.head.trained, self.head.prefix = self.trained, self.trained, prefix
        self.start = self.flatten()
        self._build, self.seed = build, seed
        self.phi, self.h = slice(0, self.base.size), slice(self.base.size, self.size)
        self.blocks |= {"base": self.phi, "head": self.h}
        # In training mode dropout would let any two results differ.
        self.eval()
        self.classes, self.width = check_parts(self, example, head)
        if constants := collect_constants(module):
            refuse_drawn_constants(constants, collect_constants(self._build_another(1)))

    def start_with(self, w: Tensor) -> None:
        """Take a vector (d,) as the initial one."""
        self.start = w

    def starts(self, k: int) -> Tensor:
        """Return k independent initial vectors (k, d), the first of which is `start`."""
        return torch.stack([self.start, *(self._another(j).to(self.start.device) for j in range(1, k))])

    def _another(self, j: int) -> Tensor:
        return Net(self._build_another(j), self.names).flatten()

    def _build_another(self, j: int) -> nn.Module:
        return build_seeded(self._build, self.seed + START_SEED_STRIDE * j)

    def eval(self) -> None:
        """Set all three networks to evaluation mode; those that are in it already are not visited."""
        for net in (self, self.base, self.head):
            if net.module.training:
                net.module.eval()

    def train_all(self, b: int) -> None:
        """Set all three networks to training on b samples."""
        for net in (self, self.base, self.head):
            net.train(b)

    def features(self, w: Tensor, x: Tensor) -> Tensor:
        """Return what the head of w (d,) is given, (b, width): the features of samples x (b, ...)."""
        return self.base(w[self.phi], x).flatten(1)

    @cached_property
    def norms(self) -> dict[str, slice]:
        """The block of w of each layer that normalises and has parameters, by its name (FedBN)."""
        return {name: self.blocks[name] for name in find_norm_layers(self.module) if name in self.blocks}

    def mask(self, *names: str) -> Tensor:
        """Return which numbers of w lie in any of these blocks, (d,) bool; for torch.where."""
        found = torch.zeros(self.size, dtype=torch.bool)
        for name in names:
            found[self.block(name)] = True
        return found.to(self.start.device)

    def join(self, phi: Tensor, h: Tensor) -> Tensor:
        """Return the whole vector w = (phi, h)."""
        return torch.cat([phi, h], -1)

    def to(self, device: torch.device | str) -> Model:
        """Return the same model with `start` on a device; both share the networks, which follow their vectors."""
        moved = copy.copy(self)
        moved.start = self.start.to(device)
        # Now, since within torch.func nothing could be kept that is made there.
        for net in (self, self.base, self.head):
            if net._constants:
                net._constants.follow(moved.start.device)
        return moved

    def block(self, name: str) -> slice:
        """Return the slice of a named block. Raises BadInput, with the known names, for an unknown one."""
        if name not in self.blocks:
            layers = [b for b in self.blocks if "." not in b]
            raise BadInput(f"block {name!r} is not part of this model; its blocks are {', '.join(layers)}")
        return self.blocks[name]
