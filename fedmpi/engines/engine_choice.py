"""Choose the engine that trains the clients, if the settings leave the choice.

On a CPU it follows from the network and the method alone, so that no digest depends on a timing. The steps of small
networks without convolutions are mostly overhead, so many of their clients train at once (vmap); other networks train
one client after another (loop). On a GPU every rank times both engines on its first clients, and rank 0 adds the times
up. The choice is kept with the run."""
from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmpi.config.schema import Config
from fedmpi.engines import gpu_card
from fedmpi.engines.coupling import find_coupling
from fedmpi.engines.gpu_card import MemoryLimits
from fedmpi.engines.gpu_errors import is_gpu_broken
from fedmpi.engines.gpu_waiting import wait_for_device
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import BATCHNORM_REFUSED, Vmap, rehearse_vmap
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.method import ClientData, Method, Nothing, State
from fedmpi.own_code.failures import describe_failure

if TYPE_CHECKING:
    from fedmpi.engines.engine import ClientGroup, Engine

# Parameters of a network that counts as small. Measured with mlp networks on one core, vmap / loop in seconds: 0.2 at 5
# thousand parameters and 100 clients, 0.6 with 20 clients; about 1 at 300 thousand parameters.
SMALL_NETWORK = 100_000
CPU = torch.device("cpu")
# Clients on which a rank times the engines.
CLIENTS_TIMED = 8


def build_engine(name: str, config: Config, limits: MemoryLimits | None = None) -> Engine:
    """Return the engine of that name; `limits` are those of the memory of the clients that `vmap` trains at once."""
    return Vmap((limits or gpu_card.limit_memory(config, CPU)).chunk, config.cuda_graphs) if name == "vmap" else Loop()


class Trained(NamedTuple):
    """A network's parameters."""
    # (d,)
    w: Tensor


@dataclass(frozen=True)
class NetworkAlone(Method):
    """The method that only trains the network: what cannot be vectorised with it is the network."""

    def client(self, shared: Trained, mine: Nothing, data: ClientData) -> tuple[Nothing, Trained]:
        """Train the network."""
        return mine, Trained(data.descend(self.model, shared.w))


def refuse_vmap(name: str, method: Method, blank: Tensor, new_clients: int = 0) -> None:
    """Raise BadInput if `vmap` is asked for and cannot train the network, or run what the method does at clients; see
    find_vmap_obstacle."""
    if name != "vmap":
        return
    if method.model.has_batchnorm:
        raise BadInput(BATCHNORM_REFUSED)
    if obstacle := find_vmap_obstacle(method, *method.init(1), blank, new_clients):
        raise BadInput(f"engine = vmap: {obstacle[0]} cannot be vectorised ({obstacle[1]}); set engine=loop")


def list_at_clients(method: Method, new_clients: int) -> list[str]:
    """Return the names of the functions of a method that the engines run in a run with so many new clients."""
    return ["client", "personal", *["idle"] * method.idles, *["serve_newcomer"] * bool(new_clients)]


def find_vmap_obstacle(method: Method, shared: State, mine: State, blank: Tensor, new_clients: int = 0
                       ) -> tuple[str, str] | None:
    """Return what cannot be vectorised, the network or a function of the method, and why; None if all can.

    Args:
        blank: one sample as stored, (1, ...).
        new_clients: their number; without any, `serve_newcomer` is not tried."""
    for name in list_at_clients(method, new_clients):
        if why := explain_failed_rehearsal(method, shared, mine, blank, name):
            alone = NetworkAlone(model=method.model)
            of_network = explain_failed_rehearsal(alone, Trained(method.model.start), Nothing(), blank)
            return ("the network", of_network) if of_network else (f"{method.title}.{name}", why)
    return find_coupling(method, shared, mine, blank)


def explain_failed_rehearsal(method: Method, shared: State, mine: State, blank: Tensor, name: str = "client") -> str:
    """Return why a function of a method cannot be vectorised; "" if it can. What fails for other reasons counts as
    well: `loop` tells such errors where they arise."""
    try:
        rehearse_vmap(method, shared, mine, blank, name)
    except RuntimeError as error:
        if is_gpu_broken(error):
            raise
        return (str(error) or type(error).__name__).splitlines()[0][:100]
    except Exception as error:
        return describe_failure(error)
    return ""


def choose_by_network(method: Method, shared: State, mine: State, blank: Tensor, new_clients: int = 0
                      ) -> tuple[str, str]:
    """Return the engine for a CPU, and why. `loop` takes what cannot be vectorised: networks that draw random numbers,
    for example."""
    model = method.model
    facts = f"{model.size:,} parameters, {'with' if model.convolves else 'without'} convolutions"
    if model.size > SMALL_NETWORK or model.convolves or model.has_batchnorm:
        return "loop", facts
    if obstacle := find_vmap_obstacle(method, shared, mine, blank, new_clients):
        return "loop", f"{obstacle[0]} cannot be vectorised: {obstacle[1]}"
    return "vmap", facts


def time_engines(group: ClientGroup, shared: State) -> np.ndarray:
    """Return the seconds of both engines on this rank's first clients, (2,): loop and vmap. The second is inf if vmap
    cannot train the network, or run the method. No result is kept. `HostedClients.time_engines` calls it."""
    spent = np.zeros(2)
    for i, name in enumerate(("loop", "vmap")):
        if name == "vmap" and is_loop_needed(group, shared):
            spent[i] = np.inf
            continue
        try:
            spent[i] = time_engine(build_engine(name, group.config, group.limits), group, shared)
        except Exception as error:
            # Samples or messages are unlike those of a rehearsal, or the GPU has no room.
            given_up = isinstance(error, FedmpiError) and not isinstance(error, BadInput)
            if name == "loop" or given_up or is_gpu_broken(error):
                raise
            spent[i] = np.inf
    return spent


def is_loop_needed(group: ClientGroup, shared: State) -> bool:
    """Say whether `vmap` cannot run the method, tried on a sample of this rank's first client."""
    for first in group.clients[:1]:
        mine, sample = group.store.read(first), group.get_training_samples(first)[0][:1]
        return find_vmap_obstacle(group.method, shared, mine, sample, group.config.data.new_clients) is not None
    return False


def time_engine(candidate: Engine, group: ClientGroup, shared: State) -> float:
    """Return an engine's seconds on the first clients in a second run; the first run warms up."""
    clients, local = group.clients[:CLIENTS_TIMED], group.plan_training(0)
    for _ in range(2):
        begin = time.perf_counter()
        for _ in candidate.apply(group.method.client, clients, shared, group, local):
            pass
        wait_for_device(group.device)
    return time.perf_counter() - begin
