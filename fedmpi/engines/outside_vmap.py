"""The way out of torch.func.vmap: a function that sees the tensors of all clients."""
from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class BatchInfo(Protocol):
    """What PyTorch tells a function about the batch that vmap makes."""
    @property
    def batch_size(self) -> int: """Return the number of clients."""


class OutsideVmap(torch.autograd.Function):
    """Calls a function on the tensors of all clients from inside vmap: `apply(function, *tensors)`."""

    @staticmethod
    def forward(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Call the function on one client's tensors, as those of a cohort of one; PyTorch calls this without vmap."""
        return function(*(t[None] for t in tensors))[0]

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[object, ...], output: Tensor | tuple[Tensor, ...]) -> None:
        """Keep nothing: no gradient flows through it."""

    @staticmethod
    def vmap(info: BatchInfo, in_dims: tuple[int | None, ...], function: Callable[..., Tensor | tuple[Tensor, ...]],
             *tensors: Tensor) -> tuple[Tensor | tuple[Tensor, ...], int]:
        """Call the function on the tensors of all clients, (c, ...) each, and return its result (c, ...), a tensor or
        several, and 0, the dimension of the clients in it.

        Args:
            info: the batch of clients.
            in_dims: the dimension of the clients in each argument; None if the argument is the same for all."""
        whole = [t.movedim(d, 0) if d is not None else share(t, info.batch_size)
                 for t, d in zip(tensors, in_dims[1:], strict=True)]
        return function(*whole), 0


def share(t: Tensor, clients: int) -> Tensor:
    """Return a view (c, ...) in which every client has the same tensor; `is_shared` knows it by the stride 0, which
    `expand` would not give a single client."""
    return t.as_strided((clients, *t.shape), (0, *t.stride()), t.storage_offset())


def is_shared(whole: Tensor) -> bool:
    """Say whether all clients have the same tensor, as `share` makes it."""
    return whole.stride(0) == 0
