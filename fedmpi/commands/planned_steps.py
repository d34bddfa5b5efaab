"""The gradient steps that a run will make, by kind, before it runs: what `fedmpi plan` and a sweep's dry run say."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedmpi.engines.batch_plan import get_local_training
from fedmpi.engines.dry_run import count_steps_by_kind
from fedmpi.engines.step_counter import DISCARDED_KINDS
from fedmpi.models.build import make_blank_samples


@dataclass(frozen=True)
class Stage:
    """Rounds in which a client does the same work."""
    rounds: int                  # 0: before the first one
    share: float                 # of all clients that takes part in each, mean
    steps: dict[str, float]      # of a participant in a round, mean; and of a client that is judged


def taking_part(case) -> tuple[int, int]:
    """Return the smallest and the largest number of participants of a round."""
    share, clients = case.config.train.participation, case.federation.clients
    low, high = share if isinstance(share, tuple) else (share, share)
    return max(1, round(low * clients)), max(1, round(high * clients))


def stages(case) -> list[Stage]:
    """Return the stages of a planned run (a commands.plan.Case).

    What follows the training, as the passes of FedALA's first time do, is as in the first round."""
    method, clients, found = case.method, case.federation.clients, []
    first, share = method.warm_up_participants(clients, case.config.seed), float(np.mean(taking_part(case))) / clients
    if first is not None:
        made = mean_steps_of_round(case, case.shared, case.federation.sizes[first], -1)
        found.append(Stage(0, len(first) / clients, {k: n for k, n in made.items() if k not in DISCARDED_KINDS}))
    return found + [Stage(rounds, share, mean_steps_of_round(case, shared, case.federation.sizes, 0))
                    for rounds, shared in method.stages(case.shared, case.config.rounds)]


def mean_steps_of_round(case, shared, sizes: np.ndarray, when: int) -> dict[str, float]:
    """Return a client's steps by kind in a round, mean over clients of these sizes."""
    sample = make_blank_samples(case.federation.shape, case.federation.dtype)
    local = get_local_training(case.config, when)
    return averaged(sizes, lambda n: {**count_steps_by_kind(case.method, shared, case.mine, sample, n, local)})


def averaged(sizes: np.ndarray, of: Callable[[int], dict[str, float]]) -> dict[str, float]:
    """Return the mean over clients of numbers that go by a client's size, worked out once for each size."""
    total: Counter[str] = Counter()
    for n, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        total.update({name: int(count) * number for name, number in of(int(n)).items()})
    return {name: round_if_whole(number / len(sizes)) for name, number in total.items()}


def in_all(found: list[Stage]) -> dict[str, float]:
    """Return the steps behind a client's judged model at the end, by kind, mean over clients: see `steps_so_far`."""
    total: Counter[str] = Counter()
    for stage in found:
        total.update({kind: max(1, stage.rounds) * stage.share * n for kind, n in stage.steps.items()
                      if kind not in DISCARDED_KINDS})
    total.update({kind: n for kind, n in found[-1].steps.items() if kind in DISCARDED_KINDS})
    return {kind: round_if_whole(number) for kind, number in total.items()}


def round_if_whole(number: float) -> float:
    """Return a number, an integer if it is one but for rounding."""
    return round(number) if abs(number - round(number)) < 1e-6 else number


def sum_and_kinds(made: dict[str, float]) -> str:
    """Return steps by kind as a text, the sum first."""
    return (
        f"{format_steps(sum(made.values()))} ({steps_to_text(made)})"
        if len(made) > 1
        else steps_to_text(made) or "none"
    )


def steps_to_text(made: dict[str, float] | None) -> str:
    """Return steps by kind as a text, "-" if they were not counted."""
    return "-" if made is None else ", ".join(f"{kind.replace('_', ' ')} {format_steps(n)}" for kind, n in made.items())


def format_steps(number: float) -> str:
    return f"{number:,.1f}".removesuffix(".0")


def describe_planned_steps(planned: list[dict], rounds: int) -> str:
    """Say what a client does in a round, in each stage (as plain values), and in all."""
    texts, done, found = [], 0, [Stage(**stage) for stage in planned]
    for stage in found:
        where = ("before round 1" if not stage.rounds else "in a round" if stage.rounds == rounds else
                 f"in a round of {done + 1}-{done + stage.rounds}")
        done += stage.rounds
        texts.append(f"{where} {sum_and_kinds(stage.steps)}")
    return f"of a participant {'; '.join(texts)}; behind a client's model at the end {sum_and_kinds(in_all(found))}"
