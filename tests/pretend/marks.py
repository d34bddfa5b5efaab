"""Marks on storages that say where tensors would be. Views share the mark, and it ends with the storage."""
from __future__ import annotations

import torch

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
# EITHER: PyTorch itself made the tensor beside another one.
HOST, PINNED, CARD, EITHER = "host", "pinned", "card", "either"


def storage(tensor):
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.untyped_storage()


def lies(tensor) -> str:
    return getattr(storage(tensor), "lies", HOST)


def put(tensor, where: str):
    """Mark a tensor's memory; return the tensor."""
    storage(tensor).lies = where
    return tensor


def on_gpu(tensor) -> bool:
    return lies(tensor) == CARD
