"""The gradient steps of all clients so far, by kind (rank 0): what a comparison of methods is to say of every row."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedmpi.engines.step_counter import JUDGED, KINDS, OTHERS, PARTICIPANTS


@dataclass
class StepTotals:
    """Steps of all clients in all rounds, of each kind: nan where a run goes on from a checkpoint without them."""
    totals: np.ndarray = field(default_factory=lambda: np.zeros(len(KINDS)))      # (kinds,)

    @classmethod
    def of(cls, saved: list[float] | None) -> StepTotals:
        """Return the totals as a checkpoint has them."""
        return cls(np.array(saved, float) if saved else np.full(len(KINDS), np.nan))

    def saved(self) -> list[float] | None:
        """Return the totals for a checkpoint; None if they are unknown."""
        return self.totals.tolist() if self.known else None

    @property
    def known(self) -> bool:
        return bool(np.isfinite(self.totals).all())

    def note(self, times: np.ndarray, trained: int, clients: int) -> dict:
        """Take what the ranks' TIMES (ranks, ...) say of a round with so many participants that trained; return its
        facts: mean steps of a participant (and of any client that was judged), and of all clients so far.

        What is trained for judging is not kept: of that the latest counts, so that the sum over kinds is what stands
        behind the judged models."""
        counts = times[:, -(JUDGED + 1) * len(KINDS):].sum(0).reshape(-1, len(KINDS))
        judged = counts[JUDGED]
        self.totals += counts[PARTICIPANTS] + counts[OTHERS]
        facts = {"steps": steps_by_kind(counts[PARTICIPANTS] / max(1, trained) + judged / clients)}
        if self.known:
            facts["steps_so_far"] = steps_by_kind((self.totals + judged) / clients)
        return facts


def steps_by_kind(numbers: np.ndarray) -> dict[str, float]:
    """Return the kinds that occur, whole numbers as such."""
    return {kind: int(number) if number == int(number) else float(number)
            for kind, number in zip(KINDS, numbers, strict=True) if number}
