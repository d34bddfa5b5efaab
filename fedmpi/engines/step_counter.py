"""Count the gradient steps that clients make, by kind.

A step is one gradient on one batch, of a network or of what a method trains in its place, such as a mix of heads. A
client that trains two models side by side makes two steps. Forward passes are not steps."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

KINDS = ("main", "head", "mix", "warm_up", "fine_tuning", "judging")
MAIN, _, _, WARM_UP, FINE_TUNING, JUDGING = KINDS
# Kinds whose training is not kept: every evaluation starts them again.
DISCARDED_KINDS = (FINE_TUNING, JUDGING)
# Whose steps are counted: participants', other clients' that idle, or those of any client that is evaluated.
PARTICIPANTS, OTHERS, EVALUATED = range(3)


def check_kind(kind: str) -> str:
    """Return a kind of steps. Raises ValueError if no kind has that name."""
    if kind not in KINDS:
        raise ValueError(f"data.with_batches(kind={kind!r}): no kind of steps; give one of {', '.join(KINDS)}")
    return kind


def classify_steps(kind: str, whose: int, warm_up: bool) -> str:
    """Return the kind that steps count as: all before the first round warm up, and what a client trains to be evaluated
    is not kept."""
    if whose == EVALUATED:
        return kind if kind == FINE_TUNING else JUDGING
    return WARM_UP if warm_up else kind


class StepCounter:
    """Counts the steps of a rank's clients since they were last taken."""

    def __init__(self) -> None:
        self.table = np.zeros((EVALUATED + 1, len(KINDS)), np.int64)
        # whose steps come next; None: nobody's, so they do not count
        self.whose: int | None = None
        self.warm_up = False
        # the steps that `noting` notes
        self.noted: list[tuple[str, int]] | None = None

    def begin(self, whose: int | None, warm_up: bool = False) -> None:
        """Say whose steps come next; None: they are a trial's, and do not count."""
        self.whose, self.warm_up = whose, warm_up

    def add(self, kind: str, steps: int) -> None:
        """Count steps of a kind for those whose steps `begin` named; nothing is counted if it named nobody."""
        if self.noted is not None:
            self.noted.append((kind, steps))
        if self.whose is not None:
            self.table[self.whose, KINDS.index(classify_steps(kind, self.whose, self.warm_up))] += steps

    @contextmanager
    def noting(self) -> Iterator[list[tuple[str, int]]]:
        """Yield a list to which (kind, steps) of all that is counted is added, whoever's it is."""
        self.noted = []
        try:
            yield self.noted
        finally:
            self.noted = None

    def take(self) -> np.ndarray:
        """Return the steps (3 * kinds,), by whose they are and by kind, and start from zero again."""
        taken = self.table.ravel().astype(float)
        self.table[:] = 0
        return taken


# It is never begun, so it counts nothing.
NO_COUNTER = StepCounter()
