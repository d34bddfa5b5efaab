"""Engine `vmap`: it trains many clients at once. A method's `client` runs under torch.func.vmap and sees one client;
the calls of its data that take time step out of vmap and work on the whole cohort."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedmpi.comm.gpu_staging import copy_to_device
from fedmpi.engines import batch_plan, convolutions
from fedmpi.engines.cohort import Cohort
from fedmpi.engines.convolutions import MAX_CLIENTS_AT_ONCE as MAX_CLIENTS_AT_ONCE
from fedmpi.engines.cuda_graphs import StepRecorder
from fedmpi.engines.engine import note_step
from fedmpi.engines.gpu_errors import is_out_of_memory, make_room_for_fewer
from fedmpi.engines.optimizer import Optimizer, count_further_vectors
from fedmpi.engines.padding import pad_samples
from fedmpi.engines.rehearsal import REHEARSAL_TRAINING, make_blank_labels, make_blank_message
from fedmpi.engines.vmap_data import VmapData
from fedmpi.engines.vmap_indexing import allow_indexing
from fedmpi.errors import BadInput
from fedmpi.method import Method, State
from fedmpi.server_only import hide_server_only
from fedmpi.torch_compat import flatten_tree, unflatten_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmpi.engines.engine import ClientGroup, Engine

# After memory was short, so many chunks in a row must fit before twice as many clients are tried again.
CHUNKS_BEFORE_DOUBLING = 64
BATCHNORM_REFUSED = (
    "engine = vmap: it cannot train a network with BatchNorm; set engine=loop, or, for resnet18, model.norm=group")
# Vectors of parameters that a client takes while it trains by SGD: start, weights, gradients, states, results.
VECTORS_PER_CLIENT = 10


if TYPE_CHECKING:
    def as_engine(engine: Vmap) -> Engine:
        """Let mypy check that this is an engine."""
        return engine


class Vmap:
    """The engine that applies a function to chunks of clients, as many at once as fit in `memory` bytes.

    This number does not depend on what else lies on a GPU at the moment, since bits may depend on the chunks."""
    name = "vmap"

    def __init__(self, memory: float = 2 ** 30, graphs: str = "off"):
        self.memory, self.graphs = memory, StepRecorder(graphs)
        # names of convolutions that are computed as products of patches; None: not chosen yet
        self.unfolded: list[str] | None = None
        # clients at once: halved when a device runs out of memory, doubled again later; and chunks that fitted since
        self.most, self.fitted = MAX_CLIENTS_AT_ONCE, 0
        # training samples by client
        self.sizes: dict[int, int] = {}

    def apply(self, function: Callable[..., State], clients: Sequence[int], shared: State, group: ClientGroup,
              local: batch_plan.LocalTraining) -> Iterator[tuple[int, State]]:
        """Yield (client, function(shared, mine, data)) for each of these clients of a group, chunk by chunk; clients
        with more samples come first. Raises BadInput if the network has BatchNorm layers.

        Args:
            function: one of the method's, such as `client`, `idle` or `personal`.
            group: the rank's clients.hosted.HostedClients, which has the samples, the states and the messages."""
        # Padding would count in a batch's statistics.
        if group.method.model.has_batchnorm:
            raise BadInput(BATCHNORM_REFUSED)
        for client in clients:
            # samples that do not fit in memory would be read from the disk for this in every round
            if client not in self.sizes:
                self.sizes[client] = len(group.get_training_samples(client)[1])
        waiting = sorted(clients, key=lambda c: (-self.sizes[c], c))
        while waiting:
            chunk = waiting[:min(self.most, self._fitting(group, local, *group.get_training_samples(waiting[0])))]
            results = self._tried(function, chunk, shared, group, local)
            if results is not None:
                yield from results
                waiting = waiting[len(chunk):]

    def _tried(self, function: Callable[..., State], chunk: list[int], shared: State, group: ClientGroup,
               local: batch_plan.LocalTraining) -> list[tuple[int, State]] | None:
        """Return the results of a chunk; None if memory is too small for it, so that fewer clients are tried next."""
        counted = group.counter.table.copy()
        try:
            results = self._together(function, chunk, shared, group, local)
        except RuntimeError as error:
            records = self.graphs.wanted(group.device)
            if len(chunk) == 1 and not records or not is_out_of_memory(error):
                raise
            why = str(error).partition("\n")[0]
            group.passes.forget()
            group.results.forget()
        else:
            self.fitted += 1
            if self.most < MAX_CLIENTS_AT_ONCE and self.fitted >= CHUNKS_BEFORE_DOUBLING:
                self.most, self.fitted = min(MAX_CLIENTS_AT_ONCE, 2 * self.most), 0
            return results
        # its clients' steps will be counted when they are made again
        group.counter.table[:] = counted
        if len(chunk) == 1:
            self.graphs.give_up(why)
            return None
        self.most, self.fitted = len(chunk) // 2, 0
        make_room_for_fewer(f"for {len(chunk)} clients", self.most, why)
        return None

    def _fitting(self, group: ClientGroup, local: batch_plan.LocalTraining, x: Tensor, y: Tensor) -> int:
        """Return how many clients like this one fit, with its samples, a batch of them, which is as wide as
        `train.batch` however few they are, and the vectors that each takes."""
        samples = x.numel() + local.batch * math.prod(x.shape[1:])
        each = 4 * (samples + count_vectors(local.optimizer) * group.method.model.size)
        return max(1, int(self.memory // each))

    def _together(self, function: Callable[..., State], clients: list[int], shared: State, group: ClientGroup,
                  local: batch_plan.LocalTraining) -> list[tuple[int, State]]:
        group.context.client = clients[0] if len(clients) == 1 else clients
        x, y = zip(*(group.get_training_samples(c) for c in clients), strict=True)
        model = group.method.model
        cohort = Cohort(pad_samples(x), pad_samples(y), tuple(map(len, y)), tuple(clients), local, 0, self.graphs,
                        partial(note_step, group), group.counter, model, tuple(map(group.portions.get, clients)),
                        group.passes, group.results)
        messages = [group.messages.get(c) for c in clients]
        if self.unfolded is None and cohort.x.is_cuda:
            self.unfolded = convolutions.choose_unfolded(model, x[0][:1], local.batch, len(clients))
        with convolutions.use_unfolded(model, self.unfolded or ()):
            results = apply_to_cohort(function, shared, [group.store.read(c) for c in clients], cohort, messages)
        return list(zip(clients, results, strict=True))


def count_vectors(optimizer: Optimizer) -> int:
    """Return how many vectors of parameters a client takes while it trains among others."""
    return VECTORS_PER_CLIENT + count_further_vectors(optimizer)


def apply_to_cohort(function: Callable[..., State], shared: State, mine: list[State], cohort: Cohort,
                    messages: list[State | None]) -> list[State]:
    """Return function(shared, mine, data) of each client of a cohort."""
    sizes, ids = copy_to_device(np.array([cohort.sizes, cohort.clients]), cohort.y.device)
    message = stack_states(messages) if None not in messages else None

    def one(mine: State, n: Tensor, i: Tensor, message: State = None) -> State:
        with allow_indexing():
            return function(shared, mine, VmapData(cohort, n, i, message))
    leaves, tree = flatten_tree(vmap(one)(stack_states(mine), sizes, ids, *([message] if message else [])))
    return [unflatten_tree([leaf[i].clone() for leaf in leaves], tree) for i in range(len(sizes))]


def stack_states(states: list[State]) -> State:
    """Return one state whose fields are the stacked fields of all states."""
    return type(states[0])(*(torch.stack(column) for column in zip(*states, strict=True)))


def rehearse_vmap(method: Method, shared: State, mine: State, blank: Tensor, name: str = "client") -> list[State]:
    """Run client 0 twice at once, as there may be no other, on one blank sample (1, ...). Raises an error, mostly
    RuntimeError, if this function of the method on its network cannot be vectorised.

    Args:
        name: of the function; only `client` has a message."""
    y = make_blank_labels(method.model, blank.device)
    cohort = Cohort(pad_samples((blank, blank)), pad_samples((y, y)), (1, 1), (0, 0), REHEARSAL_TRAINING,
                    model=method.model)
    messages = 2 * [make_blank_message(method, blank.device) if name == "client" else None]
    return apply_to_cohort(getattr(method, name), hide_server_only(shared), [mine, mine], cohort, messages)
