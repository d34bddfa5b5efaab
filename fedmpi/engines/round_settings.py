"""The settings of a round, as a client's data offer them to a method: the same ones, whatever the engine."""
from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from fedmpi.engines.batch_plan import LocalTraining, count_local_steps, find_full_lr


class RoundSettings:
    """Reads settings from `local`, the local training of the round, and `n`, which each engine's data have."""

    if TYPE_CHECKING:
        @property
        def local(self) -> LocalTraining: ...

        @property
        def n(self) -> int | Tensor: ...

    @property
    def lr(self) -> float:
        """Return the learning rate of this round: lr_decay, schedule and warm-up are part of it."""
        return self.local.lr

    @property
    def epochs(self) -> int:
        """Return the epochs of local training."""
        return self.local.epochs

    @property
    def fixed_steps(self) -> int | None:
        """Return the steps in place of these epochs; None if there are none."""
        return self.local.steps

    @property
    def steps(self) -> int | Tensor:
        """Return the number of steps of one training (an int or 0-d)."""
        return count_local_steps(self.local, self.n)

    @property
    def full_lr(self) -> float:
        """Return the learning rate without lr_decay, schedule and warm-up."""
        return find_full_lr(self.local)

    @property
    def decay(self) -> float:
        """Return by what lr_decay, schedule and warm-up have multiplied the learning rate so far."""
        return self.local.decay

    @property
    def momentum(self) -> float:
        """Return the momentum of local SGD."""
        return self.local.momentum
