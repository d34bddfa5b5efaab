"""`table[i]` in a method that runs under vmap, where i is a tensor without dimensions (a client's cluster, say): older
PyTorch (2.6, say) asks such an i for its number, which vmap does not have. There, indexing goes by a list of one."""
from __future__ import annotations

from contextlib import nullcontext
from functools import cache

import torch
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode


class IndexByList(TorchFunctionMode):
    """Turns `table[i]` into `table[[i]][0]`."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is Tensor.__getitem__ and is_index_tensor(args[1]):
            return args[0][args[1][None]][0]
        return function(*args, **(kwargs or {}))


def is_index_tensor(index) -> bool:
    return isinstance(index, Tensor) and not index.ndim and index.dtype in (torch.int64, torch.int32)


def allow_indexing():
    """Return the context in which a method may index by what vmap batches."""
    return nullcontext() if can_index_under_vmap() else IndexByList()


@cache
def can_index_under_vmap() -> bool:
    """Say whether this PyTorch can by itself."""
    table = torch.zeros(2, 1)
    try:
        vmap(lambda i: table[i])(torch.arange(2))
    except RuntimeError:
        return False
    return True
