"""How exactly networks multiply: the setting `precision`, one for the process as PyTorch's own switches are.

`float32`: in single precision, on GPUs too. `tf32`: products on a GPU round their factors to 10 bits. `bf16`: forward
passes (and so the gradients of their products) by autocast in bfloat16, 7 bits; parameters, their steps, losses and all
sums over clients stay float32."""
from __future__ import annotations

import torch
from torch import Tensor

from fedmpi.torch_compat import set_tf32

_autocast = False


def set_precision(precision: str) -> None:
    """Let all networks of this process multiply so from now on."""
    global _autocast
    set_tf32(precision == "tf32", precision == "tf32")
    _autocast = precision == "bf16"


def is_autocasting() -> bool:
    return _autocast


def run_forward(network, x: Tensor) -> Tensor:
    """Return network(x), a forward pass, in float32."""
    if not _autocast:
        return network(x)
    with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):      # a cache would outlive the step
        return network(x).float()
