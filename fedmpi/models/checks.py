"""Networks of which a flat vector, or its blocks, would not hold all that their outputs depend on."""
from __future__ import annotations

from torch import nn

from fedmpi.errors import BadInput
from fedmpi.torch_compat import BatchNorm


def refuse_buffers(module: nn.Module, policy: str | None) -> None:
    """Refuse what a reused module would carry from client to client.

    Running statistics are welcome where it is said whose they are: of a client (`local`), or averaged (`average`)."""
    welcome = [f"{name}." if name else "" for name, layer in module.named_modules()
               if policy and isinstance(layer, BatchNorm) and layer.momentum is not None]
    known = {f"{name}{kind}" for name in welcome for kind in ("running_mean", "running_var", "num_batches_tracked")}
    buffers = [name for name, _ in module.named_buffers() if name not in known]
    if buffers:
        raise BadInput(f"model: the network keeps state outside its parameters ({', '.join(buffers[:3])}...), which "
                       "would leak from client to client; use GroupNorm or LayerNorm in place of BatchNorm")


def refuse_shared(names: list[str], held: dict) -> None:
    """Refuse a network whose base and head, with `names`, share weights: each would have its own."""
    if shared := [name for name in names if name not in held]:
        raise BadInput(f"model: layers share weights ({', '.join(shared)}) so that the network cannot be cut into a "
                       "feature extractor and a head; give each its own")
