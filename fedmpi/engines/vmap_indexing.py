"""Let a method under vmap index `table[i]` by a tensor i without dimensions, such as a client's cluster.

Older versions of PyTorch (2.6, say) ask such an i for its number, which it does not have under vmap. With them
`table[[i]][0]` is computed in place of `table[i]`."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode


class IndexByList(TorchFunctionMode):
    """Computes `table[[i]][0]` for `table[i]`."""

    def __torch_function__(self, function: Callable[..., object], types: Sequence[type],
                           args: tuple[Tensor, ...] = (), kwargs: dict[str, object] | None = None) -> object:
        """Call a function of PyTorch, which asks here first; indexing by a tensor without dimensions is replaced."""
        if function is Tensor.__getitem__ and is_index_tensor(args[1]):
            return args[0][args[1][None]][0]
        return function(*args, **(kwargs or {}))


def is_index_tensor(index: object) -> bool:
    """Say whether an index is an integer tensor (int32 or int64) without dimensions."""
    return isinstance(index, Tensor) and not index.ndim and index.dtype in (torch.int64, torch.int32)


def allow_indexing() -> AbstractContextManager[object]:
    """Return the context in which a method may index by tensors that vmap batches."""
    return nullcontext() if can_index_under_vmap() else IndexByList()


@cache
def can_index_under_vmap() -> bool:
    """Say whether this version of PyTorch can do so by itself."""
    table = torch.zeros(2, 1)
    try:
        vmap(lambda i: table[i])(torch.arange(2))
    except RuntimeError:
        return False
    return True
