"""What PyTorch's operations do on a GPU beside computing: waits, atomics, views and writes."""
from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

# The host waits for the results of these.
WAITING = {"_local_scalar_dense": "item", "nonzero": "nonzero", "masked_select": "masked_select", "equal": "equal",
           "bincount": "bincount", "_unique2": "unique", "unique_dim": "unique", "unique_consecutive": "unique",
           "is_nonzero": "bool", "linalg_eigh": "linalg", "_linalg_svd": "linalg", "_linalg_eigh": "linalg"}
# These add up by atomics unless deterministic algorithms are set.
ATOMIC = {"index_add", "index_add_", "scatter_add", "scatter_add_", "embedding_dense_backward", "cumsum", "index_copy",
          "index_copy_"}
REPEAT = "repeat_interleave"
CONVOLUTIONS = {"convolution_backward"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
COPIES = {"copy_", "_foreach_copy_"}
# These take no number of the host beside tensors of the GPU.
ALONE = {"cat", "stack"}
NO_WORK = {"_unsafe_view", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
           "detach", "resize_", "set_"}


class Kind(NamedTuple):
    """Properties of an operation that do not depend on its arguments."""
    name: str
    # arguments that it writes, by position
    written: tuple[int, ...]
    # it returns a view and computes nothing
    looks: bool
    copies: bool
    indexed: bool
    # it may wait, or add up in any order
    suspect: bool


@cache
def kind(function) -> Kind:
    schema = function._schema
    name = schema.name.split("::")[1]
    written = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write)
    views = bool(schema.returns) and not written and all(r.alias_info is not None for r in schema.returns)
    suspect = name in INDEXED or name in WAITING or name in ATOMIC or name in CONVOLUTIONS or name == REPEAT
    return Kind(name, written, name in NO_WORK or views, name in COPIES, name in INDEXED, suspect)


def waits(kind: Kind, args, kwargs) -> str:
    """Return what the host waits for, "" if it does not wait."""
    if kind.indexed and any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        return "index by a mask"
    if kind.name == REPEAT:
        return "" if kwargs.get("output_size") else REPEAT
    return WAITING.get(kind.name, "")


def atomic(kind: Kind, args) -> bool:
    """Say whether an operation adds up in any order with the present settings."""
    if torch.are_deterministic_algorithms_enabled():
        return False
    accumulates = kind.indexed and len(args) > 3 and bool(args[3])
    return kind.name in ATOMIC or accumulates or kind.name in CONVOLUTIONS and not torch.backends.cudnn.deterministic


def flat(arguments) -> list[torch.Tensor]:
    """Return the tensors among arguments, and in lists among them."""
    found = []
    for value in arguments:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [v for v in value if isinstance(v, torch.Tensor)]
    return found
