"""How many steps each client of a cohort makes, and in which order the clients are trained: most steps first."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedmpi.comm.gpu_staging import copy_to_device
from fedmpi.engines import batch_plan

if TYPE_CHECKING:
    from fedmpi.engines.step_counter import StepCounter


class CohortSteps:
    """Counts the steps of a cohort's clients, of which some may make a part only (`stragglers.late: partial`)."""

    if TYPE_CHECKING:
        y: Tensor
        sizes: tuple[int, ...]
        local: batch_plan.LocalTraining
        portions: tuple[batch_plan.Portion | None, ...]
        counter: StepCounter

    def list_locals(self) -> list[batch_plan.LocalTraining]:
        """Return the local training of each client: they differ in the part of the steps that is made."""
        return [self.local._replace(portion=portion) for portion in self.portions or (None,) * len(self.sizes)]

    def count_steps(self) -> list[int]:
        """Return how many steps each client makes on its batches."""
        return [batch_plan.count_local_steps(local, n) for local, n in zip(self.list_locals(), self.sizes, strict=True)]

    @property
    def steps(self) -> Tensor:
        """Return the same as a tensor, (c,) int64."""
        return copy_to_device(np.array(self.count_steps()), self.y.device)

    def sort_by_steps(self) -> Tensor | None:
        """Return the positions (c,) of the clients by their steps, most first; None if they are in this order. They
        are unless some make a part of their steps, because larger clients make more."""
        steps = self.count_steps()
        order = sorted(range(len(steps)), key=lambda i: -steps[i])
        if order == [*range(len(steps))]:
            return None
        return copy_to_device(np.array(order), self.y.device)

    def count(self, going: Tensor | None = None) -> None:
        """Count the steps of the clients' training; with flags `going` (c,), only those of clients that go on."""
        flags = [True] * len(self.sizes) if going is None else going.tolist()
        made = zip(self.count_steps(), flags, strict=True)
        self.counter.add(self.local.kind, sum(steps for steps, counts in made if counts))
