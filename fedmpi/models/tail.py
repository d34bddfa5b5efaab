"""The last blocks of a network as a part of their own: their slice of the flat vector, and the choice among several."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedmpi.errors import BadInput
from fedmpi.models.flat import Model, Net
from fedmpi.models.split import split_module


class SamplesWithLoss(Protocol):
    """What `Tail.choose_part` asks of a client's data: see ClientData."""

    def with_features(self, net: Net, w: Tensor) -> SamplesWithLoss:
        """Return the same samples with the outputs of net(w, x) in place of x."""

    def choose_model(self, net: Net, models: Tensor) -> Tensor:
        """Return the position (0-d) of the model (k, d) with the lowest mean cross-entropy on all samples."""


@dataclass(frozen=True)
class Tail:
    """The last blocks of a network; `block` is their slice, which reaches to the end of the vector."""
    model: Model
    block: slice
    # the other blocks; None if the network cannot be cut before the last ones
    front: Net | None
    # the last blocks; None likewise
    last: Net | None

    def choose_part(self, data: SamplesWithLoss, base: Tensor, theta: Tensor) -> Tensor:
        """Return which of k parts (k, p) has a client's lowest mean loss behind the same base (d - p,), (0-d)."""
        if self.front is None or self.last is None:
            return data.choose_model(self.model, torch.stack([self.model.join(base, part) for part in theta]))
        return data.with_features(self.front, base).choose_model(self.last, theta)


def cut_tail(model: Model, layers: int, setting: str) -> Tail:
    """Return the last `layers` blocks (the layers, or groups of layers, that the network is made of). Raises BadInput.

    Running statistics of BatchNorm layers lie behind all parameters of the feature extractor: they go with the rear."""
    blocks = [name for name, layer in model.module.named_children() if list(layer.parameters())]
    if layers > len(blocks):
        raise BadInput(f"{setting} = {layers}: this network has {len(blocks)} blocks ({', '.join(blocks)}); lower it")
    last = tuple(blocks[-layers:])
    names = [name for name in model.names if name not in model.buffer_names]
    own = [name for name in names if name.partition(".")[0] in last]
    if names[-len(own):] != own:
        raise BadInput(f"{setting} = {layers}: the blocks {', '.join(last)} are not the last ones of this network's "
                       "vector; choose a number with which they hold all of model.head, or none beside it")
    block = slice(model.blocks[own[0]].start, model.size)
    return Tail(model, block, *cut_networks(model, last, block))


def cut_networks(model: Model, last: tuple[str, ...], block: slice) -> tuple[Net | None, Net | None]:
    """Return the networks before and behind a cut, laid out like the model's vector, or two None."""
    if block.start == 0:
        return None, None
    try:
        front, behind, prefix = split_module(model.module, last)
    except BadInput:
        # The network cannot be cut at a single place; whole models serve as well.
        return None, None
    front, behind = Net(front), Net(behind)
    # A part that follows the operations may hold its layers in another order than the vector does.
    fits = front.size == block.start and front.names + [prefix + name for name in behind.names] == model.names
    return (front, behind) if fits and not model.buffers else (None, None)
