"""The gradient steps of all clients so far, by kind (rank 0): a comparison of methods states them beside each row."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedmpi.engines.step_counter import EVALUATED, KINDS, OTHERS, PARTICIPANTS
from fedmpi.json_values import JsonObject


@dataclass
class StepTotals:
    """Steps of all clients in all rounds by kind; nan if the run was continued from a checkpoint without them."""
    # (kinds,)
    totals: np.ndarray = field(default_factory=lambda: np.zeros(len(KINDS)))

    @classmethod
    def of(cls, saved: list[float] | None) -> StepTotals:
        """Return the totals that a checkpoint holds."""
        return cls(np.array(saved, float) if saved else np.full(len(KINDS), np.nan))

    def saved(self) -> list[float] | None:
        """Return the totals for a checkpoint; None if they are unknown."""
        return self.totals.tolist() if self.known else None

    @property
    def known(self) -> bool:
        """Return whether the totals are known."""
        return bool(np.isfinite(self.totals).all())

    def add_round(self, steps: np.ndarray, trained: int, clients: int) -> JsonObject:
        """Add the steps of a round; return the mean steps of a participant, with those that a client takes in the mean
        to be evaluated, and the mean steps of all clients so far.

        Models that are trained only to be evaluated are not kept. Of their steps the latest ones count, so that the sum
        over kinds is what stands behind the evaluated models.

        Args:
            steps: the steps of each rank, as RankReports has them, (ranks, 3 * kinds).
            trained: the number of participants that trained.
            clients: the number of all clients, any of which may have been evaluated."""
        counts = steps.sum(0).reshape(-1, len(KINDS))
        evaluated = counts[EVALUATED]
        self.totals += counts[PARTICIPANTS] + counts[OTHERS]
        facts = {"steps": name_steps_by_kind(counts[PARTICIPANTS] / max(1, trained) + evaluated / clients)}
        if self.known:
            facts["steps_so_far"] = name_steps_by_kind((self.totals + evaluated) / clients)
        return facts


def name_steps_by_kind(numbers: np.ndarray) -> dict[str, float]:
    """Return the steps by kind, without kinds that do not occur, and whole numbers as int."""
    return {kind: int(number) if number == int(number) else float(number)
            for kind, number in zip(KINDS, numbers, strict=True) if number}
