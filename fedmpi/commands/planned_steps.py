"""The gradient steps that a run will make, by kind, for `fedmpi plan` and the dry run of a sweep."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from fedmpi.engines.batch_plan import get_local_training
from fedmpi.engines.dry_run import count_steps_by_kind
from fedmpi.engines.step_counter import DISCARDED_KINDS
from fedmpi.json_values import JsonObject
from fedmpi.models.build import make_blank_samples
from fedmpi.server.sampling import count_participants

if TYPE_CHECKING:
    from fedmpi.config.schema import Config
    from fedmpi.data.federation import Federation
    from fedmpi.method import Method, State


class PlannedRounds(NamedTuple):
    """Rounds in which those that take part do the same work."""
    # 0: the one before the first
    rounds: int
    # mean number of participants of a round
    participants: float
    # training samples of the clients among which they are, (n,)
    sizes: np.ndarray
    # what the server sends
    shared: State
    # number of such a round, for its local training
    round: int


@dataclass(frozen=True)
class Stage:
    """Rounds in which a client does the same work."""
    # 0: before the first round
    rounds: int
    # mean share of all clients that takes part in a round
    share: float
    # mean steps of a participant in a round, and of a client that is evaluated, by kind
    steps: dict[str, float]
    # mean steps of a client that does not take part in a round, by kind
    idle: dict[str, float] = field(default_factory=dict)


class PlanCase(Protocol):
    """What steps are counted of: a Case of plan_case.py, or what stands for it in sweeps/equal.py, without data."""
    @property
    def config(self) -> Config: """Return the settings."""
    @property
    def federation(self) -> Federation: """Return the samples of all clients."""
    @property
    def method(self) -> Method: """Return the method on its model."""
    @property
    def shared(self) -> State: """Return the first Shared."""
    @property
    def mine(self) -> State: """Return the first Mine."""


def find_participant_range(case: PlanCase) -> tuple[int, int]:
    """Return the smallest and the largest number of participants of a round."""
    share, clients = case.config.train.participation, case.federation.clients
    low, high = share if isinstance(share, tuple) else (share, share)
    return count_participants(low, clients), count_participants(high, clients)


def list_planned_rounds(case: PlanCase) -> list[PlannedRounds]:
    """Return the rounds of a planned run, as the method says that their work differs."""
    method, sizes = case.method, case.federation.sizes
    first, found = method.warm_up_participants(case.federation.clients, case.config.seed), []
    if first is not None:
        found.append(PlannedRounds(0, len(first), sizes[first], case.shared, -1))
    mean = float(np.mean(find_participant_range(case)))
    return found + [PlannedRounds(rounds, mean, sizes, shared, 0)
                    for rounds, shared in method.stages(case.shared, case.config.rounds) if rounds]


def plan_stages(case: PlanCase) -> list[Stage]:
    """Return the stages of a planned run, without the steps that the method's `describe_uncounted_steps` names."""
    found = []
    for part in list_planned_rounds(case):
        made = compute_mean_steps(case, part)
        if not part.rounds:
            made = {kind: n for kind, n in made.items() if kind not in DISCARDED_KINDS}
        share = part.participants / case.federation.clients
        idle = compute_mean_steps(case, part, idle=True) if case.method.idles and share < 1 and part.rounds else {}
        found.append(Stage(part.rounds, share, made, idle))
    return found


def compute_mean_steps(case: PlanCase, part: PlannedRounds, idle: bool = False) -> dict[str, float]:
    """Return a participant's steps by kind in a round, or (`idle`) those of a client that does not take part, mean over
    the clients among which participants are."""
    sample = make_blank_samples(case.federation.shape, case.federation.dtype)
    local = get_local_training(case.config, part.round)
    return average_by_size(part.sizes, lambda n: {
        **count_steps_by_kind(case.method, part.shared, case.mine, sample, n, local, idle)})


def average_by_size(sizes: np.ndarray, of: Callable[[int], dict[str, float]]) -> dict[str, float]:
    """Return the mean over clients of numbers that depend on a client's size; `of` is called once for each size."""
    total: Counter[str] = Counter()
    for n, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        total.update({name: int(count) * number for name, number in of(int(n)).items()})
    return {name: round_if_whole(number / len(sizes)) for name, number in total.items()}


def count_final_steps(found: list[Stage]) -> dict[str, float]:
    """Return the steps behind the model that a client is evaluated with at the end, by kind, mean over clients."""
    total: Counter[str] = Counter()
    for stage in found:
        total.update({kind: max(1, stage.rounds) * stage.share * n for kind, n in stage.steps.items()
                      if kind not in DISCARDED_KINDS})
        total.update({kind: stage.rounds * (1 - stage.share) * n for kind, n in stage.idle.items()})
    total.update({kind: n for kind, n in found[-1].steps.items() if kind in DISCARDED_KINDS})
    return {kind: round_if_whole(number) for kind, number in total.items()}


def round_if_whole(number: float) -> float:
    """Return a number, as an integer if it is one up to rounding."""
    return round(number) if abs(number - round(number)) < 1e-6 else number


def format_kinds(made: dict[str, float]) -> str:
    """Return steps by kind as a text, the sum first."""
    if len(made) > 1:
        return f"{format_steps(sum(made.values()))} ({steps_to_text(made)})"
    return steps_to_text(made) or "none"


def steps_to_text(made: dict[str, float] | None) -> str:
    """Return steps by kind as a text, "-" if they were not counted."""
    return "-" if made is None else ", ".join(f"{kind.replace('_', ' ')} {format_steps(n)}" for kind, n in made.items())


def format_steps(number: float) -> str:
    """Return a number of steps as text."""
    return f"{number:,.1f}".removesuffix(".0")


def describe_planned_steps(planned: list[JsonObject], rounds: int, condition: str = "") -> str:
    """Say what a client does in a round, in each stage (as plain values), and in all.

    Args:
        condition: under which the number of all steps holds, see planned_time.describe_condition."""
    texts, done, found = [], 0, [Stage(**stage) for stage in planned]
    for stage in found:
        where = ("before round 1" if not stage.rounds else "in a round" if stage.rounds == rounds else
                 f"in a round of {done + 1}-{done + stage.rounds}")
        done += stage.rounds
        idle = f", of another client {format_kinds(stage.idle)}" if stage.idle else ""
        texts.append(f"{where} {format_kinds(stage.steps)}{idle}")
    final = format_kinds(count_final_steps(found))
    return f"of a participant {'; '.join(texts)}; behind a client's model at the end {final}{condition}"
