"""One client's training data as engine `loop` offers them: it trains as fast as a hand-written PyTorch loop.

It is fast because the module's own parameters are views of one flat vector that is updated in place, because there is
no DataLoader, no optimiser object and no `.item()` per batch, because images lie channels-last, and because pulls are
applied in closed form."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmpi.comm.gpu_staging import copy_to_device
from fedmpi.engines import batch_plan, sparse_embedding
from fedmpi.engines.augmentation import change_images, draw_all_changes
from fedmpi.engines.gradients import Loss, bind_loss, bind_module, differentiate_loss, is_empty
from fedmpi.engines.model_choice import count_first, find_possible_best
from fedmpi.engines.pass_memory import PassMemory
from fedmpi.engines.result_memory import ResultMemory, name_call
from fedmpi.engines.round_settings import RoundSettings
from fedmpi.engines.step import Step, StepOptions, StepSettings, copy_shared, make_mover
from fedmpi.engines.step_counter import NO_COUNTER, StepCounter
from fedmpi.engines.trained_statistics import find_trained_net, train_statistics
from fedmpi.method import State
from fedmpi.models.build import SAMPLES_PER_PASS, as_input, as_stored
from fedmpi.models.flat import Model, Net
from fedmpi.models.losses import attach_logits, compute_loss, count_classes, read_labels
from fedmpi.models.precision import run_forward
from fedmpi.models.slices import gather_statistics
from fedmpi.models.tables import find_lowest
from fedmpi.torch_compat import copy_to_each

if TYPE_CHECKING:
    from fedmpi.client_data import ClientData, NetOrOutputs

# Batches are gathered from the samples in pieces of so many bytes.
BYTES_GATHERED_AT_ONCE = 32 << 20


@dataclass(frozen=True)
class LoopData(RoundSettings):
    """One client's training data in one round, as engine `loop` offers them; ClientData explains each function."""
    # (n, ...) as stored, or features
    x: Tensor
    # (n,), or (n, 1 + c) with logits beside the labels, see losses.attach_logits
    y: Tensor
    client: int
    local: batch_plan.LocalTraining
    stream: int = 0
    message: State = None
    # the client's row in tables of Shared, if it is not `client`, by which batches are drawn
    number: int | None = None
    # running statistics after the latest training, by their number
    left: dict[int, Tensor] = field(default_factory=dict)
    counter: StepCounter = NO_COUNTER
    # the run's network; None: only what needs none is asked for
    model: Model | None = None
    # passes of x, which were made to evaluate the client
    passes: PassMemory = field(default_factory=PassMemory)
    # results of `once`, which were computed to evaluate the client
    results: ResultMemory = field(default_factory=ResultMemory)
    # if x are features: the networks that made them, one after another, and their weights
    made_by: tuple[tuple[NetOrOutputs, Tensor], ...] = ()

    @property
    def id(self) -> Tensor:
        """Return the number of the client's row in tables of Shared (0-d int64)."""
        number = self.client if self.number is None else self.number
        # `full` makes it on the device; a copy would wait for a GPU.
        return torch.full((), number, dtype=torch.int64, device=self.y.device)

    @property
    def n(self) -> int:
        """Return the number of training samples."""
        return len(self.y)

    @property
    def class_counts(self) -> Tensor:
        """Return the number of samples of each class, (c,)."""
        return count_classes(self.y, self._network.classes)

    @property
    def _network(self) -> Model:
        # Engines and dry runs set it.
        assert self.model is not None
        return self.model

    def any_client(self, flag: Tensor) -> bool:
        """Return the flag (0-d) as a bool: this engine trains no other client at the same time."""
        return bool(flag)

    def with_batches(self, epochs: int | None, stream: int, steps: int | None = None,
                     kind: str | None = None) -> LoopData:
        """Return the same client with other batches, see batch_plan.change_batches; `stream` names their draw.

        Raises ValueError for an unknown kind of steps."""
        local = batch_plan.change_batches(self.local, epochs, steps, kind)
        return dataclasses.replace(self, local=local, stream=stream)

    def subset(self, share: float, stream: int, fixed: bool = False, rest: bool = False) -> LoopData:
        """Return the same client with a random share of its samples, or with the other ones; at least one."""
        kept = copy_to_device(
            batch_plan.draw_subset(self.local, self.client, stream, self.n, share, fixed, rest), self.y.device
        )
        return dataclasses.replace(self, x=self.x[kept], y=self.y[kept], passes=PassMemory(), results=ResultMemory())

    def with_features(self, net: NetOrOutputs, w: Tensor) -> LoopData:
        """Return the same client and batches with the outputs of net(w, x) in place of x."""
        local = self.local._replace(augmentation=batch_plan.NO_AUGMENTATION)
        return dataclasses.replace(self, x=as_stored(self._forward(net, w)), local=local, passes=PassMemory(),
                                   made_by=(*self.made_by, (net, w)))

    def with_added_logits(self, net: NetOrOutputs, w: Tensor) -> LoopData:
        """Return the same client with the logits of net(w, x) beside its labels, y (n, 1 + c).

        If labels have logits already, these are added to them, see losses.attach_logits."""
        return dataclasses.replace(self, y=attach_logits(self.y, self._forward(net, w)))

    def mean_loss(self, net: NetOrOutputs, w: Tensor) -> Tensor:
        """Return the mean cross-entropy on all samples (0-d), without gradients."""
        return compute_loss(self._forward(net, w), self.y)

    def choose_model(self, net: NetOrOutputs, models: Tensor) -> Tensor:
        """Return the position (0-d) of that one of k models (k, d) which has the lowest mean loss on all samples."""
        n = len(self.y)
        first = count_first(net, self.y) if isinstance(net, Net) else n
        if first == n:
            return find_lowest(torch.stack([self.mean_loss(net, w) for w in models]))
        return self.passes.recall(self.client, net, models, lambda: self._choose(net, models, first), self.y)

    @torch.no_grad()
    def _choose(self, net: Net, models: Tensor, first: int) -> Tensor:
        net.module.eval()
        possible = find_possible_best(net, models, self.x, self.y, first)
        if len(possible) == 1:
            return torch.tensor(possible[0])
        losses = torch.stack([compute_loss(self._pass_samples(net, models[at]), self.y) for at in possible])
        return torch.tensor(possible)[find_lowest(losses)]

    def class_sums(self, net: NetOrOutputs, w: Tensor, classes: int | None = None) -> Tensor:
        """Return the sum of the outputs (b, p) of net(w, x) over the samples of each class, (c, p)."""
        outputs = self._forward(net, w)
        classes = self._network.classes if classes is None else classes
        return F.one_hot(read_labels(self.y), classes).to(outputs.dtype).T @ outputs

    def _forward(self, net: NetOrOutputs, w: Tensor) -> Tensor:
        return self.passes.recall(self.client, net, w, lambda: self._pass_samples(net, w))

    @torch.no_grad()
    def _pass_samples(self, net: NetOrOutputs, w: Tensor) -> Tensor:
        pieces = self.x.split(SAMPLES_PER_PASS)
        if not isinstance(net, Net):
            self._network.eval()
            return torch.cat([net(w, as_input(x)) for x in pieces])
        net.bind(w)
        net.module.eval()
        return torch.cat([run_forward(net.module, as_input(x)) for x in pieces])

    def one_by_one(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Return function(*tensors): this engine computes one client after another anyway."""
        return function(*tensors)

    def once(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Return function(*tensors, data), computed once to evaluate the client and to train it next."""
        if self.message is not None:
            # evaluation had none
            return function(*tensors, self)
        call = name_call(self.client, function, tensors, self)
        known = self.results.recall(call, self.counter)
        if known is not None:
            return known
        with self.results.watch(call, self.counter, self.model) as keep:
            return keep(function(*tensors, self))

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (x, y) of every step. Samples are gathered for many steps at once; a batch is a slice of them."""
        drawn = batch_plan.draw_batches(self.local, self.client, self.stream, self.n)
        index = copy_to_device(drawn.index, self.y.device)
        size = index.shape[1]
        together = max(1, BYTES_GATHERED_AT_ONCE // max(1, 4 * self.x[0].numel() * size))
        counts = drawn.count.tolist()
        changes = draw_all_changes(self.local, (self.client,), self.stream, len(index), self.y.device)
        for start in range(0, len(index), together):
            rows = index[start:start + together].flatten()
            x, y = self.x[rows], self.y[rows]
            if changes is not None:
                x = change_images(x, changes[start:start + together].flatten(0, 2))
            x = as_input(x)
            for at, count in enumerate(counts[start:start + together]):
                yield x[at * size:at * size + count], y[at * size:at * size + count]

    def noisy_batches(self, shape: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield (x, y, e) of every step, where e (b, *shape) is the noise of the batch."""
        steps = batch_plan.count_local_steps(self.local, self.n)
        at_once = batch_plan.choose_steps_at_once((self.local.batch, *shape), steps, self.y.device)
        drawn = batch_plan.draw_noise(self.local, self.client, self.stream, shape)
        blocks = (copy_to_device(batch_plan.stack_noise(drawn, at_once), self.y.device)
                  for _ in range(0, steps, at_once))
        for (x, y), e in zip(self.batches(), chain.from_iterable(blocks), strict=False):
            yield x, y, e[:len(y)]

    def descend(self, net: Net | Loss, w: Tensor, only: slice | None = None, args: Sequence[Tensor] = (),
                noise: tuple[int, ...] | None = None, where: Tensor | bool | None = None,
                **settings: Unpack[StepSettings]) -> Tensor | tuple[Tensor, Tensor]:
        """Return w (d,) after SGD on the round's batches, or (w, v) with `spread`; w itself is not changed.

        Raises TypeError for an unknown setting, and BadInput if `only` holds no whole parameter of the network."""
        options = StepOptions.from_settings(self.local, settings)
        if is_empty(only) or not (where is None or where):
            return options.unmoved(w.clone())
        self.counter.add(self.local.kind, batch_plan.count_local_steps(self.local, self.n))
        if sparse_embedding.can_descend_sparsely(net, w, only, options):
            return sparse_embedding.descend_sparsely(self.batches(), net, w, only, options, self.local.smoothing)
        if not isinstance(net, Net):
            # What is kept within bounds is no network, such as the weights of a mix, however long it is.
            trained = None if options.is_bounded else find_trained_net(self.model, w)
            work, gradients, views = bind_loss(net, w, only, args, self.model, trained)
            step = Step(work, views, options, trained.buffers if trained else ())
        else:
            work, gradients, views = bind_module(net, w, only, self.local.smoothing)
            step = Step(work, views, options, net.buffers)
        for batch in self.noisy_batches(noise) if noise else self.batches():
            step.take(gradients(*batch))
        if not isinstance(net, Net):
            if trained and trained.buffers:
                self._leave(work, trained.buffers)
            return step.result()
        if net.buffers:
            self._leave(work, net.buffers)
        return step.result(net.release())

    def _leave(self, w: Tensor, buffers: list[slice]) -> None:
        statistics = gather_statistics(w, buffers)
        self.left[len(statistics)] = statistics

    def scan(self, step: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...],
             streams: Sequence[int] = (), optimize: bool = False) -> tuple[Tensor, ...]:
        """Apply step(state, grad, ...) -> state to all batches, each a LoopBatch."""
        state = tuple(t.clone() for t in state)
        draws = (self, *(dataclasses.replace(self, stream=stream) for stream in streams))
        mover = make_mover(state[0], self.local) if optimize else None
        for batches in zip(*(draw.batches() for draw in draws), strict=True):
            new = step(state, *(LoopBatch(self, *batch) for batch in batches))
            if mover is None:
                state = new
            else:
                state = (state[0], *copy_shared(new[1:], state[0]))
                mover.take(new[:1])
        return state


class LoopBatch(NamedTuple):
    """One batch of a client, as `scan` hands it to a method's step: see BatchGradient."""
    data: LoopData
    # (b, ...) as networks take it
    x: Tensor
    y: Tensor

    def __call__(self, net: Net | Loss, w: Tensor, *args: Tensor) -> Tensor:
        """Return the gradient (d,) of the mean cross-entropy on the batch, or of a loss of the method's own."""
        data, x, y = self
        data.counter.add(data.local.kind, 1)
        if not isinstance(net, Net):
            model = data._network
            model.train_all(len(y))
            trained = find_trained_net(model, w)
            with train_statistics(trained, w):
                gradient = differentiate_loss(net, w, x, y, args)
            if trained and trained.buffers:
                data._leave(w, trained.buffers)
            return gradient
        work, gradients, views = bind_module(net, w, None, data.local.smoothing)
        # Running statistics have no gradient.
        flat = torch.zeros_like(w) if net.buffers else torch.empty_like(w)
        copy_to_each(views(flat), gradients(x, y))
        if net.buffers:
            # Forward passes move the running statistics of a model in `state`.
            for part in net.buffers:
                w[part] = work[part]
            data._leave(work, net.buffers)
        return flat

    @torch.no_grad()
    def mean(self, outputs: Callable[..., Tensor], w: Tensor, *args: Tensor) -> Tensor:
        """Return the mean of outputs(w, x, y, *args) over the batch."""
        self.data._network.train_all(len(self.y))
        return outputs(w, self.x, self.y, *args).mean(0)


if TYPE_CHECKING:
    def as_client_data(data: LoopData) -> ClientData:
        """Let mypy check that this engine offers all that methods may use."""
        return data
