"""What a run knows between two rounds."""
from __future__ import annotations

from dataclasses import dataclass, field

from fedmpi.server import selection
from fedmpi.server.metrics import Groups
from fedmpi.server.step_totals import StepTotals


@dataclass
class RunState:
    """What a run knows between two rounds; with the clients' rows it is all that a checkpoint needs."""
    # the server's state
    shared: tuple
    groups: Groups
    # rounds finished
    round: int = 0
    # seconds spent in rounds, over all starts of the run
    seconds: float = 0.
    # the lines of metrics.jsonl
    metrics: list[dict] = field(default_factory=list)
    steps: StepTotals = field(default_factory=StepTotals)

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the names of the fields of the server's state, a NamedTuple of the method."""
        return getattr(type(self.shared), "_fields", ())

    def accuracy(self) -> float:
        """Return the accuracy that decides whether this round is the best; nan if it was not evaluated.

        It is taken on validation samples if clients are judged on them."""
        last = self.metrics[-1] if self.metrics and self.metrics[-1]["round"] == self.round else {}
        return last.get(selection.BESIDE, last.get("accuracy_mean", float("nan")))
