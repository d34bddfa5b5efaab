"""Refuse networks whose outputs depend on more than a flat vector, or its blocks, would hold."""
from __future__ import annotations

from torch import nn

from fedmpi.errors import BadInput
from fedmpi.torch_compat import BatchNorm


def refuse_buffers(module: nn.Module, policy: str | None) -> None:
    """Refuse buffers, which a reused module would carry from client to client. Raises BadInput.

    Args:
        policy: whose the running statistics of BatchNorm are: `local` (each client's own) or `average`. With None they
            are refused like all other buffers."""
    welcome = [f"{name}." if name else "" for name, layer in module.named_modules()
               if policy and isinstance(layer, BatchNorm) and layer.momentum is not None]
    known = {f"{name}{kind}" for name in welcome for kind in ("running_mean", "running_var", "num_batches_tracked")}
    buffers = [name for name, _ in module.named_buffers() if name not in known]
    if buffers:
        raise BadInput(f"model: the network keeps state outside its parameters ({', '.join(buffers[:3])}...), which "
                       "would leak from client to client; use GroupNorm or LayerNorm in place of BatchNorm")


def refuse_shared(names: list[str], held: dict) -> None:
    """Refuse a network whose base and head share weights, since each would have its own. Raises BadInput."""
    if shared := [name for name in names if name not in held]:
        raise BadInput(f"model: layers share weights ({', '.join(shared)}) so that the network cannot be cut into a "
                       "feature extractor and a head; give each its own")
