"""The SGD step of all engines, and what it can do beside a plain one.

    v <- momentum * v + g + sum of strength * (w - centre)
    w <- clip(w - lr * v)

This file alone knows the formula. An engine computes gradients, and hands them to `Step.take`; `data.descend` hands the
author's settings on as they are. A new option is a key of StepSettings, a field of StepOptions and its lines here.

Steps work in place on buffers that stay where they are, and no step waits for a GPU: a CUDA graph may record them.
Legend: c clients, k of them active, d parameters, p of them in a block, v rows of e numbers."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor

from fedmpi.engines.batch_plan import LocalTraining
from fedmpi.engines.gradient_variance import GradientVariance
from fedmpi.torch_compat import add_to_each

# Rows of parameters begin at multiples of so many numbers on a GPU: 256 bytes, as all of its memory does.
ALIGNED_NUMBERS = 64


class Pull(NamedTuple):
    """Adds strength * (w - centre) to the gradient of a block of w."""
    centre: Tensor                # (p,), or (c, p) for c clients at once
    strength: float | Tensor      # a number, or (c,)
    block: slice | None           # None: all of w


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
    pull: Sequence[Pull] = ()
    clip: tuple[float, float] | None = None
    spread: bool = False      # whether the variance of the gradients is returned beside the weights

    @classmethod
    def from_settings(cls, local: LocalTraining, settings: StepSettings) -> StepOptions:
        """Return an author's settings, with the round's learning rate and momentum if there are no others.

        Raises TypeError for a setting that does not exist."""
        if unknown := settings.keys() - StepSettings.__annotations__.keys():
            raise TypeError(f"data.descend has no setting {', '.join(sorted(unknown))}; it has only, args, noise, "
                            f"where, {', '.join(StepSettings.__annotations__)}")
        lr, momentum = settings.get("lr"), settings.get("momentum")
        return cls(local.lr if lr is None else lr, local.momentum if momentum is None else momentum,
                   [Pull(*pull) for pull in settings.get("pull", ())], settings.get("clip"),
                   settings.get("spread", False))

    @property
    def allows_late_rows(self) -> bool:
        """Say whether a row without a gradient may take its steps later, as SparseRows does: velocities and clipping
        concern all rows in every step, and the variance is one of all gradients."""
        return not (self.momentum or self.clip or self.spread)

    def tensors(self, w: Tensor) -> list[Tensor]:
        """Return all that may differ from client to client as tensors beside w (d,), for torch.func.vmap."""
        strengths = [pull.strength.to(w) if isinstance(pull.strength, Tensor) else
                     torch.full((), pull.strength, dtype=w.dtype, device=w.device) for pull in self.pull]
        return [pull.centre for pull in self.pull] + strengths

    def with_tensors(self, tensors: Sequence[Tensor]) -> StepOptions:
        """Return the same options with other values in place of those that `tensors` returned."""
        n = len(self.pull)
        return replace(self, pull=[
            Pull(centre, strength, pull.block)
            for centre, strength, pull in zip(tensors[:n], tensors[n:], self.pull, strict=True)])

    def unmoved(self, w: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return what a descent without a single step returns."""
        return (w, w.new_zeros(w.shape[:-1])) if self.spread else w

    def choose(self, moves: Tensor, found: Tensor | tuple[Tensor, Tensor],
               w: Tensor) -> Tensor | tuple[Tensor, Tensor]:
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
        self._velocity = zero_rows(weights) if options.momentum else None
        self._speeds = [] if self._velocity is None else views(self._velocity)
        sums = views(zero_rows(weights)) if options.spread else []
        self._variance = GradientVariance([self._by_client(part) for part in sums]) if options.spread else None
        self._active: Active | None = None

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
        if now.velocity is not None:
            now.velocity.mul_(options.momentum)
            add_to_each(now.speeds, gradients)
            for pull in now.pulls:
                pull.velocity.add_((pull.weights - pull.centre) * pull.factor)
            now.weights.sub_(now.velocity, alpha=options.lr)
        else:
            # the pulls see the weights before the gradients move them
            take_pulls(now.pulls)
            if gradients:      # none if a table, whose rows SparseRows moves, is all that learns
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

    def _first(self, k: int | None) -> Active:
        """Return the views of the first k clients, which many steps have in common."""
        weights, moving, velocity, speeds = self.weights, self._moving, self._velocity, self._speeds
        pulls = self.options.pull
        if k is not None:
            weights, moving = weights[:k], [part[:k] for part in moving]
            velocity, speeds = None if velocity is None else velocity[:k], [part[:k] for part in speeds]
            pulls = [
                Pull(centre[:k], strength[:k, None] if isinstance(strength, Tensor) else strength, block)
                for centre, strength, block in pulls]
        return Active(k, weights, moving, velocity, speeds,
                      [self._active_pull(pull, weights, velocity) for pull in pulls],
                      [weights[part] for part in self.buffers])

    def _active_pull(self, pull: Pull, weights: Tensor, velocity: Tensor | None) -> ActivePull:
        block = slice(None) if pull.block is None else pull.block
        if velocity is not None:
            return ActivePull(weights[..., block], velocity[..., block], pull.centre, pull.strength)
        rate = self.options.lr * pull.strength
        if isinstance(rate, Tensor) and rate.ndim:
            rate = rate.expand(pull.centre.shape)
        return ActivePull(weights[..., block], weights, pull.centre, rate)


class ActivePull(NamedTuple):
    """A pull on the clients that move."""
    weights: Tensor
    velocity: Tensor
    centre: Tensor
    factor: float | Tensor      # the strength; without momentum times the learning rate


class Active(NamedTuple):
    """Views of the clients that move in a step."""
    k: int | None
    weights: Tensor
    moving: list[Tensor]      # the parts for which there are gradients
    velocity: Tensor | None
    speeds: list[Tensor]      # the same parts of the velocity
    pulls: list[ActivePull]
    buffers: list[Tensor]


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


class SparseRows:
    """Takes steps of a table (v, e) of which each batch reads a few rows: only those are moved.

    The pulls on the other rows are late: a row takes them when it is next read. Several pulls are one, to the mean of
    their centres; m steps of it leave (1 - lr * strength)^m of the distance.

    Args:
        rows: the table (v, e); each step moves it.
        options: of the steps; they must allow late rows. Each pull's centre is (v, e)."""

    def __init__(self, rows: Tensor, options: StepOptions):
        self.rows, self.lr, self.steps = rows, options.lr, 0
        strengths = [float(pull.strength) for pull in options.pull]
        total = sum(strengths)
        if len(strengths) == 1:
            self._centre = options.pull[0].centre
        elif total:
            self._centre = sum(p.centre * (s / total) for p, s in zip(options.pull, strengths, strict=True))
        self._left = 1 - self.lr * total
        self._taken = torch.zeros(len(rows), device=rows.device)      # steps, per row
        self._sums = torch.zeros_like(rows)

    def read(self, ids: Tensor) -> Tensor:
        """Return the values (n, e) of rows that a batch reads; ids (n,) may name a row twice."""
        self._catch_up(ids)
        return self.rows[ids]

    def take(self, ids: Tensor, gradients: Tensor) -> None:
        """Take one step with gradients (n, e) by the rows `ids` (n,), those of its batch."""
        self.steps += 1
        self._catch_up(ids)
        # a row that is used often: its small gradients are added up first, or they would be lost beside its values
        self._sums.index_add_(0, ids, gradients)
        self.rows[ids] = self.rows[ids].sub_(self._sums[ids], alpha=self.lr)
        self._sums[ids] = 0

    def finish(self) -> Tensor:
        """Return the table when all rows have taken all pulls."""
        self._catch_up(slice(None))
        return self.rows

    def _catch_up(self, ids: Tensor | slice) -> None:
        """Bring rows to where the pulls of all steps so far take them."""
        if self._left == 1:
            return
        gone = 1 - self._left ** (self.steps - self._taken[ids])
        self.rows[ids] = self.rows[ids].lerp(self._centre[ids], gone[:, None])
        self._taken[ids] = float(self.steps)


def empty_rows(w: Tensor) -> Tensor:
    """Return room for rows like w (c, d) on a GPU, each of which begins at a multiple of ALIGNED_NUMBERS: products of
    matrices that lie at odd places are slow there, or cannot use its fast units."""
    return w.new_empty(len(w), -(-w.shape[1] // ALIGNED_NUMBERS) * ALIGNED_NUMBERS)[:, :w.shape[1]]


def zero_rows(w: Tensor) -> Tensor:
    """Return zeros like w (d,) or (c, d), which lie as the engines' weights do."""
    return empty_rows(w).zero_() if w.is_cuda and w.ndim == 2 else torch.zeros_like(w)
