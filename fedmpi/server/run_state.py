"""What a run knows between two rounds."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedmpi.json_values import JsonObject
from fedmpi.method import State
from fedmpi.own_code.changes import CodeChange
from fedmpi.own_code.fingerprint import Fingerprint
from fedmpi.server import early_stopping
from fedmpi.server.metrics import ClusterTracker
from fedmpi.server.step_totals import StepTotals
from fedmpi.storage.checkpoint import Snapshot
from fedmpi.task import find_task


@dataclass
class RunState:
    """What a run knows between two rounds; with the clients' rows it is all that a checkpoint needs."""
    # the server's state
    shared: State
    clusters: ClusterTracker
    # the rounds that are finished
    round: int = 0
    # seconds spent in rounds, over all starts of the run
    seconds: float = 0.
    # the lines of metrics.jsonl
    metrics: list[JsonObject] = field(default_factory=list)
    steps: StepTotals = field(default_factory=StepTotals)
    # of the user's own code: its fingerprint, and its changes between starts that the user accepted
    own_code: Fingerprint = field(default_factory=dict)
    accepted_code_changes: list[CodeChange] = field(default_factory=list)
    # why the clients are trained with their engine
    engine_why: str = ""
    # simulated seconds of all rounds, if settings say how fast devices are
    simulated_seconds: float = 0.

    def restore(self, snapshot: Snapshot, shared: State) -> None:
        """Continue from a checkpoint, with the server's state that it holds."""
        saved = snapshot.extra
        self.shared, self.round, self.metrics = shared, snapshot.round, snapshot.metrics
        self.seconds, self.steps = saved["seconds"], StepTotals.of(saved.get("steps"))
        self.simulated_seconds = saved.get("simulated_seconds", 0.)
        self.clusters.last = np.array(saved["clusters"], np.int64)
        self.clusters.each = {name: np.array(v, float) for name, v in saved.get("each", {}).items()}

    def describe(self) -> JsonObject:
        """Return what a checkpoint says of the run beside the states and the metrics."""
        return {"seconds": self.seconds, "simulated_seconds": self.simulated_seconds, "steps": self.steps.saved(),
                "clusters": self.clusters.last.tolist(), "each": {n: v.tolist() for n, v in self.clusters.each.items()},
                "engine_why": self.engine_why, **self.describe_code()}

    def describe_code(self) -> JsonObject:
        """Return what result.json and checkpoints say of the user's own code; {} if the run names none."""
        found: JsonObject = {"own_code": self.own_code} if self.own_code else {}
        return found | ({"accepted_code_changes": self.accepted_code_changes} if self.accepted_code_changes else {})

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the names of the fields of the server's state, a NamedTuple of the method."""
        return getattr(type(self.shared), "_fields", ())

    def count_skipped_rounds(self) -> int:
        """Return in how many rounds the server took no update, so that its state stayed."""
        missing = ("late", "lost", "bad_updates")
        # metrics.jsonl of old versions may not say how many took part
        return sum(line["round"] > 0 and line.get("participants") == sum(len(line.get(key, ())) for key in missing)
                   for line in self.metrics)

    def score(self) -> float:
        """Return the number that decides whether this round is the best; nan if it was not evaluated.

        It is the mean accuracy, or the negative mean error, and taken on validation samples if there are any."""
        last: JsonObject = self.metrics[-1] if self.metrics and self.metrics[-1]["round"] == self.round else {}
        task = find_task(last)
        validated = last.get(early_stopping.name_validation_key(task), float("nan"))
        # it is nan, too, if no client has a validation sample
        return task.score(validated if validated == validated else last.get(task.key, float("nan")))
