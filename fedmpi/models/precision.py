"""The setting `precision`: how exactly networks multiply. It holds for the process, as PyTorch's own switches do.

`float32` multiplies in single precision, on GPUs too. `tf32` rounds the factors of products on a GPU to 10 bits. `bf16`
runs forward passes, and with them the gradients of their products, by autocast in bfloat16 (7 bits); parameters, their
steps, losses and all sums over clients stay float32."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedmpi.torch_compat import set_tf32

_autocast = False


def set_precision(precision: str) -> None:
    """Set the precision of matrix products and convolutions of this process."""
    global _autocast
    set_tf32(precision == "tf32", precision == "tf32")
    _autocast = precision == "bf16"


@contextmanager
def without_autocast() -> Iterator[None]:
    """Let forward passes run in float32, whichever precision is set."""
    global _autocast
    before, _autocast = _autocast, False
    try:
        yield
    finally:
        _autocast = before


def is_autocasting() -> bool:
    """Say whether forward passes run in bfloat16."""
    return _autocast


def run_forward(network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return network(x) in float32, computed in the precision that is set."""
    if not _autocast:
        return network(x)
    # A cache of converted weights would outlive the step.
    with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
        return network(x).float()
