"""The clients that engine `vmap` trains at once, as one batch of tensors. This part knows nothing of methods.

Clients are sorted by their number of samples, largest first, so that in every step the first k of them are those that
still have a batch.
Legend: c clients, s samples of the largest, d parameters, b batch."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedmpi.comm.gpu_staging import copy_to_device
from fedmpi.engines import batch_plan, padding
from fedmpi.engines.augmentation import change_images, draw_all_changes
from fedmpi.engines.cohort_steps import CohortSteps
from fedmpi.engines.cuda_graphs import StepRecorder
from fedmpi.engines.gradients import Loss, bind_cohort, bind_cohort_loss, compute_own_gradient, is_empty
from fedmpi.engines.outside_vmap import is_shared
from fedmpi.engines.pass_memory import PassMemory
from fedmpi.engines.recorded_gradients import RecordedGradients
from fedmpi.engines.result_memory import ResultMemory
from fedmpi.engines.step import Step, StepOptions, allocate_rows, copy_shared, make_mover
from fedmpi.engines.step_counter import NO_COUNTER, StepCounter
from fedmpi.models.build import as_input
from fedmpi.models.flat import Model, Net
from fedmpi.models.losses import compute_loss, count_classes, read_labels

if TYPE_CHECKING:
    from fedmpi.client_data import NetOrOutputs


def do_nothing() -> None:
    """Let training go on."""


@dataclass(frozen=True)
class Cohort(CohortSteps):
    """The training data of c clients, padded to whole blocks, as many as the largest has.

    Args:
        x: (c, s, ...) as stored, or features.
        y: (c, s), or (c, s, 1 + classes) with logits beside the labels, see losses.attach_logits.
        sizes: the clients' numbers of samples, descending.
        check: is called before every step, and raises if training is to end.
        model: the run's network; None: only what needs none is asked for.
        portions: the part of its steps that each client makes, None for all; (): all clients make all.
        passes: those of x, which were made to evaluate the clients.
        results: those of `ClientData.once`, which were computed to evaluate the clients.
        made_by: if x are features: the networks that made them, one after another, and their weights (c, d)."""
    x: Tensor
    y: Tensor
    sizes: tuple[int, ...]
    clients: tuple[int, ...]
    local: batch_plan.LocalTraining
    stream: int = 0
    graphs: StepRecorder = StepRecorder()
    check: Callable[[], None] = do_nothing
    counter: StepCounter = NO_COUNTER
    model: Model | None = None
    portions: tuple[batch_plan.Portion | None, ...] = ()
    passes: PassMemory = field(default_factory=PassMemory)
    results: ResultMemory = field(default_factory=ResultMemory)
    made_by: tuple[tuple[NetOrOutputs, Tensor], ...] = ()

    def reorder(self, order: Tensor) -> Cohort:
        """Return the same clients in another order (c,), to train them; only `subset` needs larger ones first."""
        at = order.tolist()
        pick = [tuple(values[i] for i in at) for values in (self.sizes, self.clients, self.portions)]
        return dataclasses.replace(self, x=self.x[order], y=self.y[order], sizes=pick[0], clients=pick[1],
                                   portions=pick[2])

    def plans(self) -> tuple[Tensor, Tensor, list[int]]:
        """Return positions and weights of all batches, (steps, c, b), and how many clients are active in each step.

        Weights are 1 / (samples of the batch), and 0 for padding."""
        drawn = [batch_plan.draw_batches(local, i, self.stream, n)
                 for local, i, n in zip(self.list_locals(), self.clients, self.sizes, strict=True)]
        steps = [len(p.count) for p in drawn]
        # Positions and numbers of samples in one array, so that one copy takes them to the device.
        both = np.zeros((max(steps), len(drawn), self.local.batch + 1), np.int32)
        for i, p in enumerate(drawn):
            both[:steps[i], i, :-1], both[:steps[i], i, -1] = p.index, p.count
        both = copy_to_device(both, self.y.device)
        index, count = both[..., :-1].long(), both[..., -1:]
        weight = (torch.arange(self.local.batch, device=count.device) < count) / count.clamp_min(1)
        active = (np.array(steps) > np.arange(max(steps))[:, None]).sum(1)
        return index, weight, active.tolist()

    def subset(self, share: float, stream: int, fixed: bool, rest: bool) -> Cohort:
        """Return the same clients with a share of their samples each. Larger clients keep more, so the order stays."""
        kept = [batch_plan.draw_subset(self.local, i, stream, n, share, fixed, rest)
                for i, n in zip(self.clients, self.sizes, strict=True)]
        if self.y.is_cuda:
            places = [k + i * self.y.shape[1] for i, k in enumerate(kept)]
            x, y = (padding.gather_padded(rows.flatten(0, 1), places) for rows in (self.x, self.y))
        else:
            x, y = (padding.pad_samples([row[k] for row, k in zip(rows, map(torch.from_numpy, kept), strict=True)])
                    for rows in (self.x, self.y))
        return dataclasses.replace(self, x=x, y=y, sizes=tuple(map(len, kept)), passes=PassMemory(),
                                   results=ResultMemory())

    def batches(self) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Yield (k, x, y, weight) of every step, for the first k clients."""
        index, weight, active = self.plans()
        changes = draw_all_changes(self.local, self.clients, self.stream, len(active), self.y.device)
        for t, k in enumerate(active):
            self.check()
            yield k, *self._gathered(index[t, :k], None if changes is None else changes[t, :k]), weight[t, :k]

    def _gathered(self, index: Tensor, changes: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the samples (k, b, ...) and labels at positions (k, b) of the first k clients.

        Args:
            changes: of the images, (k, b, 3); None: they stay as they are."""
        rows = torch.arange(len(index), device=index.device)[:, None]
        x = self.x[rows, index].flatten(0, 1)
        if changes is not None:
            x = change_images(x, changes.flatten(0, 1))
        return as_input(x).unflatten(0, index.shape), self.y[rows, index]

    def replay(self, take: Callable[[int, Tensor, Tensor, Tensor], None]) -> None:
        """Call take(k, x, y, weight) in every step, in a way that a CUDA graph can record.

        Only the positions of the batch differ from step to step; the device looks them up by a counter of its own."""
        index, weight, active = self.plans()
        changes = draw_all_changes(self.local, self.clients, self.stream, len(active), self.y.device)
        t = torch.zeros(1, dtype=torch.int64, device=index.device)
        for k, steps in groupby(active):
            def step(k: int = k) -> None:
                now = None if changes is None else changes.index_select(0, t)[0, :k]
                take(k, *self._gathered(index.index_select(0, t)[0, :k], now), weight.index_select(0, t)[0, :k])
                t.add_(1)
            self.graphs.repeat(step, len(list(steps)), t.device, self.check)

    def noises(self, shape: tuple[int, ...]) -> Iterator[Tensor]:
        """Yield the noise of each step's batches, (k, b, *shape), for the first k clients."""
        steps = self.count_steps()
        at_once = batch_plan.choose_steps_at_once((len(steps), self.local.batch, *shape), max(steps), self.y.device)
        drawn = [batch_plan.draw_noise(self.local, i, self.stream, shape) for i in self.clients]
        for begin in range(0, max(steps), at_once):
            ks = [sum(mine > t for mine in steps) for t in range(begin, min(begin + at_once, max(steps)))]
            block = np.stack([batch_plan.stack_noise(noise, at_once) for noise in drawn[:ks[0]]])
            block = copy_to_device(block, self.y.device)
            yield from (block[:k, t] for t, k in enumerate(ks))

    def forward(self, net: NetOrOutputs, w: Tensor, shared: bool = False) -> Tensor:
        """Return the outputs on all (padded) samples, (c, s, ...), by blocks; blocks of mere padding repeat the first.

        Args:
            shared: compute all with the first row of w (c, d), by one network rather than by one for each client."""
        return self.passes.recall((self.clients, shared), net, w, lambda: self._pass_samples(net, w, shared))

    @torch.no_grad()
    def _pass_samples(self, net: NetOrOutputs, w: Tensor, shared: bool) -> Tensor:
        rows = w[0] if shared else w
        parts: list[Tensor] | Tensor = rows
        if isinstance(net, Net):
            net.module.eval()
            parts = [p.contiguous() if p.ndim < 5 else p for p in net.split(rows)]
        else:
            self.network.eval()
        if shared and self.x.is_cuda:
            # as many samples at once as all clients have in a block, but no padding
            pieces = padding.gather_own(self.sizes, self.x).split(padding.SAMPLES_PER_BLOCK * len(self.sizes))
            return padding.pad_samples(torch.cat([net(parts, as_input(x)) for x in pieces]).split(self.sizes))
        outputs: list[Tensor] = []
        for (block,) in padding.split_blocks(self.sizes, self.x):
            k, x = len(block), as_input(block.flatten(0, 1))
            if shared:
                # Bits must not depend on how many clients have such a block.
                pieces = x.split(padding.SAMPLES_PER_BLOCK)
                found = torch.cat([net(parts, piece) for piece in pieces]).unflatten(0, (k, -1))
            else:
                mine = [p[:k] for p in parts] if isinstance(parts, list) else parts[:k]
                found = vmap(net)(mine, x.unflatten(0, block.shape[:2]))
            outputs.append(found)
        return padding.join_blocks(outputs)

    @property
    def network(self) -> Model:
        """Return the run's network, which the engine has set."""
        assert self.model is not None
        return self.model

    def mean_loss(self, net: NetOrOutputs, w: Tensor) -> Tensor:
        """Return each client's mean cross-entropy over its own samples, (c,), by blocks; padding adds 0.

        A model that all clients have in common is applied as one network. Its last bits are others than in a batch of
        networks, so `with_features`, whose outputs are trained on, does not do this."""
        outputs = self.forward(net, w, shared=is_shared(w)).flatten(0, 1)
        losses = compute_loss(outputs, self.y.flatten(0, 1), reduction="none").unflatten(0, self.y.shape[:2])
        own, sizes = padding.mark_own(self.sizes, losses)
        per_block = (losses * own).unflatten(1, (-1, padding.SAMPLES_PER_BLOCK)).sum(2)
        return sum(per_block.unbind(1)) / sizes

    def class_counts(self) -> Tensor:
        """Return the number of each client's own samples of each class, (c, classes)."""
        own = (y[:n] for y, n in zip(self.y, self.sizes, strict=True))
        return torch.stack([count_classes(y, self.network.classes) for y in own])

    def class_sums(self, net: NetOrOutputs, w: Tensor, classes: int | None) -> Tensor:
        """Return sums of the outputs over each client's own samples of each class, (c, classes, p), by blocks."""
        outputs = self.forward(net, w)
        classes = self.network.classes if classes is None else classes
        own, _ = padding.mark_own(self.sizes, outputs)
        members = F.one_hot(read_labels(self.y, 2), classes).to(outputs.dtype) * own[..., None]
        blocks = zip(*(t.split(padding.SAMPLES_PER_BLOCK, 1) for t in (members, outputs)), strict=True)
        return sum(m.transpose(1, 2) @ o for m, o in blocks)

    def descend(self, net: Net | Loss, w: Tensor, options: StepOptions, only: slice | None, args: Sequence[Tensor],
                noise: tuple[int, ...] | None) -> Tensor | tuple[Tensor, Tensor]:
        """Train c clients from w (c, d); the options' centres are (c, p), their strengths (c,)."""
        if (order := self.sort_by_steps()) is not None:
            options = options.with_tensors([t[order] for t in options.tensors(w)])
            found = self.reorder(order).descend(net, w[order], options, only, [t[order] for t in args], noise)
            back = order.argsort()
            return found[back] if isinstance(found, Tensor) else (found[0][back], found[1][back])
        work = allocate_rows(w).copy_(w) if w.is_cuda else w.clone(memory_format=torch.contiguous_format)
        if is_empty(only):
            return options.unmoved(work)
        gradients, views = (bind_cohort(net, work, only, self.local.smoothing) if isinstance(net, Net) else
                            bind_cohort_loss(net, work, only, args, self.model))
        step = Step(work, views, options)

        def take(k: int, x: Tensor, y: Tensor, weight: Tensor, *noise: Tensor) -> None:
            step.take(gradients(k, x, y, weight, *noise), k)
        if noise:
            for batch, e in zip(self.batches(), self.noises(noise), strict=True):
                take(*batch, e)
        # a method's own loss may do what cannot be recorded
        elif isinstance(net, Net) and self.graphs.wanted(work.device):
            self.replay(take)
        else:
            for batch in self.batches():
                take(*batch)
        return step.result()

    def scan(self, step: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...],
             streams: Sequence[int] = (), optimize: bool = False) -> tuple[Tensor, ...]:
        """Apply step(state, grad, ...) -> state to all batches; state is a tuple of tensors (c, ...)."""
        if (order := self.sort_by_steps()) is not None:
            found = self.reorder(order).scan(step, tuple(t[order] for t in state), streams, optimize)
            return tuple(t[order.argsort()] for t in found)
        state = tuple(t.clone() for t in state)
        draws = (self, *(dataclasses.replace(self, stream=stream) for stream in streams))
        mover = make_mover(state[0], self.local) if optimize else None
        with RecordedGradients(self.graphs, self.count_steps(), self.y.device, self.local.smoothing) as gradients:
            for drawn in zip(*(draw.batches() for draw in draws), strict=True):
                # Every draw has the same number of batches, of the same sizes.
                k = drawn[0][0]

                def one(state: tuple[Tensor, ...], batches: list[tuple[Tensor, Tensor, Tensor]],
                        k: int = k) -> tuple[Tensor, ...]:
                    gradients.begin_step(k)
                    return step(state, *(CohortBatch(self, k, gradients, *batch) for batch in batches))
                # A step may hand on what it was given, as another tensor of its state (a former model).
                new = copy_shared(vmap(one)(tuple(t[:k] for t in state), [batch for _, *batch in drawn]), *state)
                for t, n in list(zip(state, new, strict=True))[bool(mover):]:
                    t[:k] = n
                if mover is not None:
                    mover.take(new[:1], k)
        return state


class CohortBatch(NamedTuple):
    """One batch of each of k clients, seen from inside vmap by one of them: see BatchGradient. Padding weighs 0."""
    cohort: Cohort
    k: int
    gradients: RecordedGradients
    x: Tensor
    y: Tensor
    weight: Tensor

    def __call__(self, net: Net | Loss, w: Tensor, *args: Tensor) -> Tensor:
        """Return the gradient (d,) of the mean cross-entropy on the batch, or of a loss of the method's own."""
        cohort, k, gradients, x, y, weight = self
        cohort.counter.add(cohort.local.kind, k)
        if isinstance(net, Net):
            return gradients.compute(x, y, weight, net, w)
        cohort.network.train_all(cohort.local.batch)
        return compute_own_gradient(x, y, weight, net, w, args)

    @torch.no_grad()
    def mean(self, outputs: Callable[..., Tensor], w: Tensor, *args: Tensor) -> Tensor:
        """Return the mean of outputs(w, x, y, *args) over the batch."""
        self.cohort.network.train_all(self.cohort.local.batch)
        found = outputs(w, self.x, self.y, *args)
        return (found * self.weight.view(-1, *[1] * (found.ndim - 1))).sum(0)
