"""What PyTorch's operations do on a GPU beside computing."""
from __future__ import annotations

from functools import cache

import torch

# The host waits for their result
WAITING = {"_local_scalar_dense": "item", "nonzero": "nonzero", "masked_select": "masked_select", "equal": "equal",
           "bincount": "bincount", "_unique2": "unique", "unique_dim": "unique", "unique_consecutive": "unique",
           "is_nonzero": "bool", "linalg_eigh": "linalg", "_linalg_svd": "linalg", "_linalg_eigh": "linalg"}
# They add up by atomics unless deterministic algorithms are asked for
ATOMIC = {"index_add", "index_add_", "scatter_add", "scatter_add_", "embedding_dense_backward", "cumsum", "index_copy",
          "index_copy_"}
CONVOLUTIONS = {"convolution_backward"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
COPIES = {"copy_", "_foreach_copy_"}
ALONE = {"cat", "stack"}      # they take no number of the host beside tensors of the GPU
NO_WORK = {"_unsafe_view", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
           "detach", "resize_", "set_"}


@cache
def name_of(function) -> str:
    return function._schema.name.split("::")[1]


@cache
def written(function) -> tuple[int, ...]:
    """Return which arguments an operation writes, by position."""
    return tuple(i for i, a in enumerate(function._schema.arguments) if a.alias_info and a.alias_info.is_write)


@cache
def looks(function) -> bool:
    """Say whether an operation returns a view and computes nothing."""
    returned = function._schema.returns
    return name_of(function) in NO_WORK or bool(returned) and not written(function) and all(
        r.alias_info is not None for r in returned)


def waits(function, args, kwargs) -> str:
    """Say for what the host waits, "" where it does not."""
    name = name_of(function)
    if name in INDEXED and any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        return "index by a mask"
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        return "repeat_interleave"
    return WAITING.get(name, "")


def atomic(function, args) -> bool:
    """Say whether an operation adds up in any order, as things are set."""
    if torch.are_deterministic_algorithms_enabled():
        return False
    name = name_of(function)
    accumulates = name in INDEXED and len(args) > 3 and bool(args[3])
    return name in ATOMIC or accumulates or name in CONVOLUTIONS and not torch.backends.cudnn.deterministic


def flat(arguments) -> list[torch.Tensor]:
    """Return the tensors among arguments, and in lists among them."""
    found = []
    for value in arguments:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [v for v in value if isinstance(v, torch.Tensor)]
    return found
