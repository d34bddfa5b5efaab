"""Outputs of the server's models on all of a client's samples, and the client's choice among such models, kept from
evaluating a client to its next training.

IFCA, FedAH and the methods made of them begin a client's round with passes of all its samples through models of Shared.
To evaluate the client, just before, they made the same passes: the server has changed nothing in between."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from torch import Tensor

from fedmpi.models.flat import Net
from fedmpi.torch_compat import count_changes, locate_memory

# Outputs of more bytes are not kept: the passes are made again.
MOST_BYTES_KEPT = 256 << 20


class KnownPass(NamedTuple):
    """A pass that was made."""
    net: Net
    # The model, a tensor of Shared or a part of one: held, so that its memory cannot become another tensor's.
    w: Tensor
    # counts the changes of w in place
    version: int
    outputs: Tensor
    # of a choice by losses: the labels
    y: Tensor | None = None

    def is_of(self, net: object, w: Tensor, y: Tensor | None = None) -> bool:
        """Say whether this is the pass of a network with the weights w, or a choice by these labels."""
        if not (self.net is net and self.version == count_changes(w) and self.w.data_ptr() == w.data_ptr()
                and (self.w.shape, self.w.stride()) == (w.shape, w.stride())):
            return False
        return self.y is y if self.y is None or y is None else self.y.equal(y)


class PassMemory:
    """Passes of all samples of a rank's clients: kept while clients are evaluated, recalled when they train.

    Only passes of models that lie in Shared are kept, and only of networks whose layers are PyTorch's or fedmpi's:
    those of others may draw random numbers."""

    def __init__(self) -> None:
        self.known: dict[Hashable, list[KnownPass]] = {}
        self.fills, self.bytes = False, 0
        # where the tensors of Shared lie
        self.shared: frozenset[int] = frozenset()

    def begin(self, shared: Iterable[object], fills: bool) -> None:
        """Begin to evaluate clients, or to train them. The passes of another Shared are forgotten.

        Args:
            fills: passes are kept."""
        self.fills = fills
        tensors = frozenset(locate_memory(v) for v in shared if isinstance(v, Tensor)) - {0}
        if tensors != self.shared:
            self.shared = tensors
            self.forget()

    def recall(self, whose: Hashable, net: object, w: Tensor, make: Callable[[], Tensor],
               y: Tensor | None = None) -> Tensor:
        """Return the outputs of a network on all samples of a client, or of clients that are trained at once.

        With labels, w are several models (k, d), and what is kept is which of them the client chose.

        Args:
            whose: names the clients and how they are computed.
            net: a Net, or a function, whose passes are not kept.
            w: its weights.
            make: makes the pass.
            y: the labels of a choice."""
        if not (isinstance(net, Net) and net.plain and locate_memory(w) in self.shared):
            return make()
        for known in self.known.get(whose, ()):
            if known.is_of(net, w, y):
                return known.outputs
        outputs = make()
        if self.fills and self.bytes + outputs.nbytes <= MOST_BYTES_KEPT:
            self.bytes += outputs.nbytes
            self.known.setdefault(whose, []).append(KnownPass(net, w, count_changes(w), outputs, y))
        return outputs

    def forget(self) -> None:
        """Forget all passes."""
        self.known, self.bytes = {}, 0
