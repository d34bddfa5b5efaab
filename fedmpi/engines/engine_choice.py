"""Which engine trains the clients: asked for, or chosen.

On a CPU the choice follows from the network alone, so that a digest never depends on a timing: small networks without
convolutions are trained many clients at once, where the cost of a step is overhead; others one by one. On a GPU every
rank times both on its first clients, rank 0 adds the times up; the choice is kept with the run."""
from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from fedmpi.config.schema import Config
from fedmpi.engines import gpu_card
from fedmpi.engines.convolutions import synchronize_device
from fedmpi.engines.gpu_card import MemoryLimits
from fedmpi.engines.gpu_errors import is_gpu_broken
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import BATCHNORM_REFUSED, Vmap, rehearse_vmap
from fedmpi.errors import BadInput

# Measured with mlp networks on one core: vmap / loop = 0.2 at 5 thousand parameters and 100 clients, 0.6 with 20;
# about 1 at 300 thousand parameters
SMALL_NETWORK = 100_000
CPU = torch.device("cpu")
CLIENTS_TIMED = 8      # clients that a rank times on


def build_engine(name: str, config: Config, room: MemoryLimits | None = None):
    """Return the engine of that name; a chunk of `vmap` takes what the room for it says."""
    return Vmap((room or gpu_card.limit_memory(config, CPU)).chunk, config.cuda_graphs) if name == "vmap" else Loop()


def refuse_vmap(name: str, method, blank: Tensor) -> None:
    """Raise BadInput where `vmap` is asked for, and cannot train the network."""
    if name != "vmap":
        return
    if method.model.buffers:
        raise BadInput(BATCHNORM_REFUSED)
    if why := find_vmap_obstacle(method, *method.init(1), blank):
        raise BadInput(f"engine = vmap: the network cannot be vectorised ({why}); set engine=loop")


def find_vmap_obstacle(method, shared, mine, blank: Tensor) -> str:
    """Return why the network cannot be vectorised, "" where it can."""
    try:
        rehearse_vmap(method, shared, mine, blank)
    except RuntimeError as error:
        return (str(error) or type(error).__name__).splitlines()[0][:100]
    return ""


def choose_by_network(method, shared, mine, blank: Tensor) -> tuple[str, str]:
    """Choose for a CPU, and say why; a network that cannot be vectorised (one that draws random numbers, say) is left
    to `loop`."""
    model = method.model
    facts = f"{model.size:,} parameters, {'with' if model.convolves else 'without'} convolutions"
    if model.size > SMALL_NETWORK or model.convolves or model.buffers:
        return "loop", facts
    if find_vmap_obstacle(method, shared, mine, blank):
        return "loop", "the network cannot be vectorised"
    return "vmap", facts


def time_engines(group, shared) -> np.ndarray:
    """Time both engines on this rank's first clients, (2,) seconds: loop, vmap; endless where vmap cannot train the
    network. Nothing is kept."""
    spent = np.zeros(2)
    if group.method.message_template() is not None:
        group.messages = dict.fromkeys(group.clients, group.method.message_template())
    for i, name in enumerate(("loop", "vmap")):
        try:
            spent[i] = time_engine(build_engine(name, group.config, group.room), group, shared)
        except (RuntimeError, BadInput) as error:      # random numbers in the network, BatchNorm, no room on the GPU
            if name == "loop" or is_gpu_broken(error):
                raise
            spent[i] = np.inf
    group.messages = {}
    return spent


def time_engine(candidate, group, shared) -> float:
    """Return an engine's seconds on the first clients, the second time: the first one warms up."""
    for _ in range(2):
        begin = time.perf_counter()
        for _ in candidate.apply(group.method.client, group.clients[:CLIENTS_TIMED], shared, group, group.local(0)):
            pass
        synchronize_device(group.device)
    return time.perf_counter() - begin
