"""Engine `vmap`: it trains many clients at once. A method's `client` runs under torch.func.vmap and sees one client;
the calls of its data that take time step out of vmap and work on the whole cohort."""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedmpi.engines import batch_plan, convolutions
from fedmpi.engines.cohort import Cohort
from fedmpi.engines.convolutions import MAX_CLIENTS_AT_ONCE as MAX_CLIENTS_AT_ONCE
from fedmpi.engines.cuda_graphs import StepRecorder
from fedmpi.engines.engine import note_step
from fedmpi.engines.gpu_errors import is_out_of_memory, make_room_for_fewer
from fedmpi.engines.gradients import Loss, is_empty
from fedmpi.engines.optimizer import Optimizer, count_further_vectors
from fedmpi.engines.outside_vmap import OutsideVmap
from fedmpi.engines.padding import pad_samples
from fedmpi.engines.pass_memory import PassMemory
from fedmpi.engines.rehearsal import REHEARSAL_TRAINING
from fedmpi.engines.round_settings import RoundSettings
from fedmpi.engines.step import StepOptions, StepSettings
from fedmpi.engines.vmap_indexing import allow_indexing
from fedmpi.errors import BadInput
from fedmpi.method import Method, State
from fedmpi.models.build import as_stored
from fedmpi.models.flat import Net
from fedmpi.models.losses import attach_logits
from fedmpi.server_only import hide_server_only
from fedmpi.torch_compat import flatten_tree, unflatten_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmpi.client_data import ClientData, NetOrOutputs
    from fedmpi.engines.engine import ClientGroup, Engine

# After memory was short, so many chunks in a row must fit before twice as many clients are tried again.
CHUNKS_BEFORE_DOUBLING = 64
BATCHNORM_REFUSED = (
    "engine = vmap: it cannot train a network with BatchNorm; set engine=loop, or the model's norm to group")
# Vectors of parameters that a client takes while it trains by SGD: start, weights, gradients, states, results.
VECTORS_PER_CLIENT = 10


@dataclass(frozen=True)
class VmapData(RoundSettings):
    """One client's training data as a method sees them inside vmap; ClientData explains each function."""
    cohort: Cohort
    # number of training samples: a batched 0-d tensor, which also marks the level of vmap
    n: Tensor
    id: Tensor
    message: State = None

    @property
    def local(self) -> batch_plan.LocalTraining:
        """Return the settings of local training, which all clients of the cohort share."""
        return self.cohort.local

    @property
    def steps(self) -> int | Tensor:
        """Return the number of steps of one training (an int or 0-d)."""
        return OutsideVmap.apply(lambda n: self.cohort.steps, self.n) if any(self.cohort.portions) else super().steps

    @property
    def class_counts(self) -> Tensor:
        """Return the number of samples of each class, (c,)."""
        return OutsideVmap.apply(lambda n: self.cohort.class_counts(), self.n)

    def any_client(self, flag: Tensor) -> bool:
        """Say whether the flag (0-d) holds for any client of the cohort."""
        found: list[bool] = []

        def look(n: Tensor, flag: Tensor) -> Tensor:
            found.append(bool(flag.any()))
            return n
        OutsideVmap.apply(look, self.n, flag)
        return found[0]

    def with_batches(self, epochs: int | None, stream: int, steps: int | None = None,
                     kind: str | None = None) -> VmapData:
        """Return the same client with other batches, see batch_plan.change_batches; `stream` names their draw.

        Raises ValueError for an unknown kind of steps."""
        local = batch_plan.change_batches(self.cohort.local, epochs, steps, kind)
        return dataclasses.replace(self, cohort=dataclasses.replace(self.cohort, local=local, stream=stream))

    def _forward(self, net: NetOrOutputs, w: Tensor) -> Tensor:
        """Return the outputs of the whole cohort; what vmap itself returns would be one client's view of them."""
        outputs: list[Tensor] = []

        def forward(n: Tensor, w: Tensor) -> Tensor:
            outputs.append(self.cohort.forward(net, w))
            return n
        OutsideVmap.apply(forward, self.n, w)
        return outputs[0]

    def with_features(self, net: NetOrOutputs, w: Tensor) -> VmapData:
        """Return the same client and batches with the outputs of net(w, x) in place of x."""
        local = self.cohort.local._replace(augmentation=batch_plan.NO_AUGMENTATION)
        outputs = self._forward(net, w)
        x = as_stored(outputs.flatten(0, 1)).unflatten(0, outputs.shape[:2])
        return dataclasses.replace(self, cohort=dataclasses.replace(self.cohort, x=x, local=local, passes=PassMemory()))

    def with_added_logits(self, net: NetOrOutputs, w: Tensor) -> VmapData:
        """Return the same client with the logits of net(w, x) beside its labels, see losses.attach_logits."""
        labels = attach_logits(self.cohort.y, self._forward(net, w))
        return dataclasses.replace(self, cohort=dataclasses.replace(self.cohort, y=labels))

    def subset(self, share: float, stream: int, fixed: bool = False, rest: bool = False) -> VmapData:
        """Return the same client with a random share of its samples, or with the other ones; at least one."""
        part = self.cohort.subset(share, stream, fixed, rest)
        sizes = batch_plan.copy_to_device(np.array(part.sizes), part.y.device)
        return dataclasses.replace(self, cohort=part, n=OutsideVmap.apply(lambda n: sizes, self.n))

    def class_sums(self, net: NetOrOutputs, w: Tensor, classes: int | None = None) -> Tensor:
        """Return the sum of the outputs (b, p) of net(w, x) over the samples of each class, (c, p)."""
        return OutsideVmap.apply(lambda n, w: self.cohort.class_sums(net, w, classes), self.n, w)

    def mean_loss(self, net: NetOrOutputs, w: Tensor) -> Tensor:
        """Return the mean cross-entropy on all of the client's samples (0-d), without gradients."""
        return OutsideVmap.apply(lambda n, w: self.cohort.mean_loss(net, w), self.n, w)

    def descend(self, net: Net | Loss, w: Tensor, only: slice | None = None, args: Sequence[Tensor] = (),
                noise: tuple[int, ...] | None = None, where: Tensor | None = None,
                **settings: Unpack[StepSettings]) -> Tensor | tuple[Tensor, Tensor]:
        """Return w (d,) after SGD on the round's batches, or (w, v) with `spread`; w itself is not changed. The whole
        cohort trains; clients for which `where` is False then keep w.

        Raises TypeError for an unknown setting, and BadInput if `only` holds no whole parameter of the network."""
        options = StepOptions.from_settings(self.local, settings)
        own, flags = options.tensors(w), [] if where is None else [where]
        first, second = len(own), len(own) + len(flags)

        def descend_all(n: Tensor, w: Tensor, *tensors: Tensor) -> Tensor | tuple[Tensor, Tensor]:
            if not is_empty(only):
                self.cohort.count(*tensors[first:second])
            return self.cohort.descend(net, w, options.with_tensors(tensors[:first]), only, tensors[second:], noise)
        found = OutsideVmap.apply(descend_all, self.n, w, *own, *flags, *args)
        return found if where is None else options.choose(where, found, w)

    def one_by_one(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Return function(*tensors), computed outside vmap for one client of the cohort after another."""
        def apply_to_each(n: Tensor, *tensors: Tensor) -> Tensor:
            # clones, since bits may depend on how a vector is aligned
            return torch.stack([function(*(t.clone() for t in row)) for row in zip(*tensors, strict=True)])
        return OutsideVmap.apply(apply_to_each, self.n, *tensors)

    def scan(self, step: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...],
             streams: Sequence[int] = (), optimize: bool = False) -> tuple[Tensor, ...]:
        """Apply step(state, grad, ...) -> state to all batches of the cohort, and return this client's last state."""
        return OutsideVmap.apply(lambda n, *state: self.cohort.scan(step, state, streams, optimize), self.n, *state)


if TYPE_CHECKING:
    def as_client_data(data: VmapData) -> ClientData:
        """Let mypy check that this engine offers all that methods may use."""
        return data

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
                        group.passes)
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
    sizes, ids = batch_plan.copy_to_device(np.array([cohort.sizes, cohort.clients]), cohort.y.device)
    message = stack_states(messages) if None not in messages else None

    def one(mine: State, n: Tensor, i: Tensor, message: State = None) -> State:
        with allow_indexing():
            return function(shared, mine, VmapData(cohort, n, i, message))
    leaves, tree = flatten_tree(vmap(one)(stack_states(mine), sizes, ids, *([message] if message else [])))
    return [unflatten_tree([leaf[i].clone() for leaf in leaves], tree) for i in range(len(sizes))]


def stack_states(states: list[State]) -> State:
    """Return one state whose fields are the stacked fields of all states."""
    return type(states[0])(*(torch.stack(column) for column in zip(*states, strict=True)))


def rehearse_vmap(method: Method, shared: State, mine: State, blank: Tensor) -> list[State]:
    """Run client 0 twice at once, as there may be no other, on one blank sample (1, ...). Raises RuntimeError if the
    method's `client` on its network cannot be vectorised."""
    y = torch.zeros(1, dtype=torch.int64, device=blank.device)
    cohort = Cohort(pad_samples((blank, blank)), pad_samples((y, y)), (1, 1), (0, 0), REHEARSAL_TRAINING,
                    model=method.model)
    messages = 2 * [method.message_template()]
    return apply_to_cohort(method.client, hide_server_only(shared), [mine, mine], cohort, messages)
