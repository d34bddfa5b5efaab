"""The SGD step of all engines, and what it can do beside a plain one.

    g <- shorten(g) + weight_decay * w
    v <- momentum * v + g + sum of strength * (w - centre)
    w <- clip(w - lr * v)

Nesterov's momentum and Adam put another direction in the place of v: see TotalGradient, and optimizer.py for Adam's
moments and for how gradients are shortened. AdamW multiplies w by 1 - lr * weight_decay before the step instead.

This file alone knows the formula, but for the rows of a table, which sparse_embedding.py moves. An engine computes
gradients, and hands them to `Step.take`; `data.descend` hands the author's settings on as they are. A new option is a
key of StepSettings, a field of StepOptions and its lines here.

Steps work in place on buffers that stay where they are, and no step waits for a GPU: a CUDA graph may record them.
Legend: c clients, k of them active, d parameters, p of them in a block."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor

from fedmpi.engines.batch_plan import LocalTraining
from fedmpi.engines.gradient_variance import GradientVariance
from fedmpi.engines.optimizer import PLAIN_SGD, Moments, Optimizer
from fedmpi.torch_compat import add_to_each, copy_to_each, locate_memory

# Rows of parameters begin at multiples of so many numbers on a GPU: 256 bytes, as all of its memory does.
ALIGNED_NUMBERS = 64


class PullTerm(NamedTuple):
    """Adds strength * (w - centre) to the gradient of a block of w."""
    # (p,), or (c, p) for c clients at once
    centre: Tensor
    # a number, or (c,)
    strength: float | Tensor
    # None: all of w
    block: slice | None


class StepSettings(TypedDict, total=False):
    """What the author of a method may ask of the steps of `data.descend`; see ClientData for the meaning of each."""
    lr: float | None
    momentum: float | None
    pull: Sequence[tuple[Tensor, float | Tensor, slice | None]]
    clip: tuple[float, float] | None
    spread: bool


@dataclass(frozen=True)
class StepOptions:
    """What all steps of one descent have in common."""
    lr: float
    momentum: float = 0.
    pull: Sequence[PullTerm] = ()
    clip: tuple[float, float] | None = None
    # whether the variance of the gradients is returned beside the weights
    spread: bool = False
    optimizer: Optimizer = PLAIN_SGD

    @classmethod
    def from_settings(cls, local: LocalTraining, settings: StepSettings) -> StepOptions:
        """Return an author's settings, with the round's learning rate, momentum and optimizer if there are no others.

        An author who gives a momentum asks for SGD steps with it, to which nothing of the run's optimizer applies.
        Raises TypeError for a setting that does not exist, and for a pull that is not a triple."""
        if unknown := settings.keys() - StepSettings.__annotations__.keys():
            raise TypeError(f"data.descend has no setting {', '.join(sorted(unknown))}; it has only, args, noise, "
                            f"where, {', '.join(StepSettings.__annotations__)}")
        try:
            pulls = [PullTerm(*pull) for pull in settings.get("pull", ())]
        except TypeError:
            raise TypeError("data.descend: pull is a list such as [(centre, strength, block)], where a block None is "
                            "all of w") from None
        lr, momentum, clip = settings.get("lr"), settings.get("momentum"), settings.get("clip")
        return cls(local.lr if lr is None else lr, local.momentum if momentum is None else momentum, pulls, clip,
                   settings.get("spread", False), local.optimizer if momentum is None else PLAIN_SGD)

    @property
    def allows_late_rows(self) -> bool:
        """Say whether a row without a gradient may take its steps later, as SparseRows does: velocities, moments, decay
        and clipping concern all rows in every step, and norm and variance are those of all gradients."""
        return not (self.momentum or self.clip or self.spread) and self.optimizer == PLAIN_SGD

    @property
    def is_bounded(self) -> bool:
        """Say whether all entries are kept within bounds, as the weights of a mix are and no network's are."""
        return self.clip is not None

    def tensors(self, w: Tensor) -> list[Tensor]:
        """Return all that may differ from client to client as tensors beside w (d,), for torch.func.vmap."""
        strengths = [pull.strength.to(w) if isinstance(pull.strength, Tensor) else
                     torch.full((), pull.strength, dtype=w.dtype, device=w.device) for pull in self.pull]
        return [pull.centre for pull in self.pull] + strengths

    def with_tensors(self, tensors: Sequence[Tensor]) -> StepOptions:
        """Return the same options with other values in place of those that `tensors` returned."""
        n = len(self.pull)
        return replace(self, pull=[PullTerm(centre, strength, pull.block) for centre, strength, pull in
                                   zip(tensors[:n], tensors[n:], self.pull, strict=True)])

    def unmoved(self, w: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return what a descent without a single step returns."""
        return (w, w.new_zeros(w.shape[:-1])) if self.spread else w

    def choose(self, moves: Tensor, found: Tensor | tuple[Tensor, Tensor], w: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return what a descent from w found if the client `moves` (a 0-d flag), else what `unmoved` returns."""
        if not self.spread:
            return torch.where(moves, found, w)
        weights, variance = found
        return torch.where(moves, weights, w), torch.where(moves, variance, 0.)


class Step:
    """Takes SGD steps of one vector, or of c clients' vectors at once, in place.

    Args:
        weights: (d,), or (c, d); each step moves it.
        views: returns the parts of a vector like `weights` for which there are gradients, in the gradients' order.
        options: of the steps. Of c clients, each pull has a centre (c, p) and a strength (c,).
        buffers: slices of running statistics, which forward passes move, but no step; for a single vector only."""

    def __init__(self, weights: Tensor, views: Callable[[Tensor], list[Tensor]], options: StepOptions,
                 buffers: Sequence[slice] = ()):
        self.weights, self.options, self.buffers = weights, options, buffers
        self._moving = views(weights)
        self._velocity = allocate_zero_rows(weights) if options.momentum else None
        self._speeds = [] if self._velocity is None else views(self._velocity)
        sums = views(allocate_zero_rows(weights)) if options.spread else []
        self._variance = GradientVariance([self._by_client(part) for part in sums]) if options.spread else None
        optimizer = options.optimizer
        self._adapts = optimizer.adapts_gradients
        self._total = TotalGradient(weights, views, options) if optimizer.needs_total else None
        self._active: ActiveClients | None = None

    def take(self, gradients: Sequence[Tensor], k: int | None = None) -> None:
        """Take one step.

        Args:
            gradients: those of the batch, one for each view; without the pulls.
            k: how many clients move, the first ones of c; None: all."""
        options, now = self.options, self._active
        if now is None or now.k != k:
            now = self._active = self._first(k)
        if self._variance is not None:
            self._variance.add([self._by_client(g) for g in gradients])
        statistics = [part.clone() for part in now.buffers]
        if self._adapts and gradients:
            gradients = options.optimizer.adapt_gradients(gradients, now.moving, self.weights.ndim == 2)
        if self._total is not None:
            self._total.step(now, gradients)
        elif now.velocity is not None:
            now.velocity.mul_(options.momentum)
            add_to_each(now.speeds, gradients)
            for pull in now.pulls:
                pull.velocity.add_((pull.weights - pull.centre) * pull.factor)
            now.weights.sub_(now.velocity, alpha=options.lr)
        else:
            # the pulls see the weights before the gradients move them
            take_pulls(now.pulls)
            # There are none if only a table learns, whose rows are moved elsewhere (sparse_embedding.py).
            if gradients:
                add_to_each(now.moving, gradients, alpha=-options.lr)
        if options.clip:
            now.weights.clamp_(*options.clip)
        for part, values in zip(now.buffers, statistics, strict=True):
            part.copy_(values)

    def result(self, weights: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return the weights, and the variance (c,) or () of the gradients if the options ask for it.

        Args:
            weights: a vector that has the values of this step's own, to be returned in its place."""
        weights = self.weights if weights is None else weights
        if self._variance is None:
            return weights
        variance = self._variance.value()
        return weights, variance if self.weights.ndim == 2 else variance[0]

    def _by_client(self, part: Tensor) -> Tensor:
        """Return a part as one of c clients."""
        return part if self.weights.ndim == 2 else part[None]

    def _first(self, k: int | None) -> ActiveClients:
        """Return the views of the first k clients, which many steps have in common."""
        weights, moving, velocity, speeds = self.weights, self._moving, self._velocity, self._speeds
        pulls = self.options.pull
        if k is not None:
            weights, moving = weights[:k], [part[:k] for part in moving]
            velocity, speeds = None if velocity is None else velocity[:k], [part[:k] for part in speeds]
            pulls = [PullTerm(centre[:k], strength[:k, None] if isinstance(strength, Tensor) else strength, block)
                     for centre, strength, block in pulls]
        return ActiveClients(k, weights, moving, velocity, speeds,
                             [self._active_pull(pull, weights, velocity) for pull in pulls],
                             [weights[part] for part in self.buffers])

    def _active_pull(self, pull: PullTerm, weights: Tensor, velocity: Tensor | None) -> ActivePull:
        block = slice(None) if pull.block is None else pull.block
        if velocity is not None or self._total is not None:
            speeds = weights if velocity is None else velocity[..., block]
            return ActivePull(weights[..., block], speeds, pull.centre, pull.strength, pull.block)
        rate = self.options.lr * pull.strength
        if isinstance(rate, Tensor) and rate.ndim:
            rate = rate.expand(pull.centre.shape)
        return ActivePull(weights[..., block], weights, pull.centre, rate, pull.block)


class ActivePull(NamedTuple):
    """A pull on the clients that move; its velocity is read with momentum or Adam alone."""
    weights: Tensor
    velocity: Tensor
    centre: Tensor
    # the strength; times the learning rate if there is neither momentum nor Adam
    factor: float | Tensor
    block: slice | None


class ActiveClients(NamedTuple):
    """Views of the clients that move in a step."""
    k: int | None
    weights: Tensor
    # the parts for which there are gradients
    moving: list[Tensor]
    velocity: Tensor | None
    # the same parts of the velocity
    speeds: list[Tensor]
    pulls: list[ActivePull]
    buffers: list[Tensor]


class TotalGradient:
    """Takes the steps that need the total gradient, with all pulls in it, as one vector: Nesterov's and Adam's.

    Its entries are 0 for parameters that are frozen and not pulled, so these stay as they are.

    Args:
        weights, views, options: those of the Step."""

    def __init__(self, weights: Tensor, views: Callable[[Tensor], list[Tensor]], options: StepOptions):
        self.options = options
        self._total = allocate_zero_rows(weights)
        self._parts = views(self._total)
        adaptive = options.optimizer.name != "sgd"
        self._moments = Moments(allocate_zero_rows(weights), allocate_zero_rows(weights)) if adaptive else None

    def step(self, now: ActiveClients, gradients: Sequence[Tensor]) -> None:
        """Take one step of the clients that move, with the gradients of their batches."""
        options, total, parts = self.options, self._total, self._parts
        if now.k is not None:
            total, parts = total[:now.k], [part[:now.k] for part in parts]
        # The step before has left something in the blocks of the pulls.
        if now.pulls:
            total.zero_()
        copy_to_each(parts, list(gradients))
        for pull in now.pulls:
            block = slice(None) if pull.block is None else pull.block
            total[..., block].add_((pull.weights - pull.centre) * pull.factor)
        if self._moments is not None:
            options.optimizer.decay_weights(now.moving, options.lr)
            self._moments.step(now.weights, total, options.lr, now.k)
        elif now.velocity is not None:
            now.velocity.mul_(options.momentum).add_(total)
            now.weights.sub_(total.add_(now.velocity, alpha=options.momentum), alpha=options.lr)


def make_mover(w: Tensor, local: LocalTraining) -> Step:
    """Return what takes the run's steps of w, (d,) or (c, d), in place, with gradients of the same shape."""
    return Step(w, lambda flat: [flat], StepOptions.from_settings(local, {}))


def copy_shared(tensors: Sequence[Tensor], *moved: Tensor) -> list[Tensor]:
    """Return tensors that do not change with those that are `moved`: copies of what lies in their memory."""
    places = {locate_memory(w) for w in moved}
    return [t.clone() if locate_memory(t) in places else t for t in tensors]


def take_pulls(pulls: Sequence[ActivePull]) -> None:
    """Take the steps of pulls, w - factor * (w - centre), all from the same weights."""
    if len(pulls) == 1:
        pull, = pulls
        pull.weights.lerp_(pull.centre, pull.factor)
        return
    # blocks may overlap, so all steps are computed before the first one is taken
    steps = [(pull.weights - pull.centre) * pull.factor for pull in pulls]
    for pull, step in zip(pulls, steps, strict=True):
        pull.weights.sub_(step)


def allocate_rows(w: Tensor) -> Tensor:
    """Return room for rows like w (c, d) on a GPU, each of which begins at a multiple of ALIGNED_NUMBERS: products of
    matrices that lie at odd places are slow there, or cannot use its fast units."""
    return w.new_empty(len(w), -(-w.shape[1] // ALIGNED_NUMBERS) * ALIGNED_NUMBERS)[:, :w.shape[1]]


def allocate_zero_rows(w: Tensor) -> Tensor:
    """Return zeros like w (d,) or (c, d), which lie as the engines' weights do."""
    return allocate_rows(w).zero_() if w.is_cuda and w.ndim == 2 else torch.zeros_like(w)
