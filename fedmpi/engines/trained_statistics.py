"""Which running statistics (BatchNorm's) a forward pass in training mode moves.

A loss of a method's own may apply the network to other vectors than the one that it trains: to a teacher, to an earlier
model of the client, or to a mixture of two models. Each pass of a vector that is differentiated moves the statistics of
the vector that is trained, as a module of PyTorch has one set of them whatever its weights are made of. A pass of any
other vector moves nothing: other clients may start from that vector, too."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from fedmpi.models.flat import Model, Net


def find_trained_net(model: Model | None, w: Tensor) -> Net | None:
    """Return which network a vector w (d,) has the size of: the model, its feature extractor or its head; else None."""
    nets = () if model is None else (model, model.base, model.head)
    return next((net for net in nets if net.size == len(w)), None)


@contextmanager
def train_statistics(net: Net | None, w: Tensor) -> Iterator[None]:
    """Let the passes of vectors that are differentiated move the statistics in w (d,), the vector that is trained.

    Args:
        net: what find_trained_net returned for w. Without it, such a pass moves those of the vector that it is given.
    """
    if net is None or not net.buffers:
        yield
        return
    net.trained.update({net.prefix + name: view for name, view in zip(net.names, net.split(w), strict=True)
                        if name in net.buffer_names})
    try:
        yield
    finally:
        net.trained.clear()
