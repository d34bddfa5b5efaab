"""The simulated time of a round: how long each participant takes, who is too late, and how much work it manages.

A participant receives the model, trains and sends. Training takes its seconds per step times its steps; a forward
pass over a batch takes a third of a step. `edge` gives the bandwidth, and the seconds of a step if `stragglers` does
not. Legend: N clients, n participants."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedmpi.config.schema import Config
from fedmpi.data.federation import Federation
from fedmpi.edge import FORWARD_SHARE
from fedmpi.engines.batch_plan import Portion
from fedmpi.engines.dry_run import RoundWork
from fedmpi.errors import BadInput
from fedmpi.method import Participants
from fedmpi.participation import Stragglers
from fedmpi.server.client_files import read_rows
from fedmpi.server.edge_cost import EdgeLedger

# The part of a step, and of a deadline, that rounding may take away: three steps of .1 s are in time after .3 s.
TIME_ROUNDING = 1e-9


class Timing(NamedTuple):
    """How the participants of a round spend its simulated time."""
    # which of them are in time, (n,) bool
    in_time: np.ndarray
    # the portion of its steps that each makes: so many of every so many, (n, 2) int64, see Portion
    portions: np.ndarray
    # when each of them is done, or the server waits no longer for it, in seconds, (n,)
    ends: np.ndarray
    # the part of its steps that each participant makes, (n,); of several trainings each is shortened by itself
    made: np.ndarray

    @property
    def seconds(self) -> float:
        """Return the seconds until the server goes on; 0 without participants."""
        return float(self.ends.max()) if len(self.ends) else 0.

    @property
    def partial(self) -> np.ndarray:
        """Return which participants are in time because they make a part of their steps, (n,) bool."""
        return self.in_time & (self.portions[:, 0] < self.portions[:, 1])


class DeviceCost(NamedTuple):
    """What a round of each participant takes: seconds (n,), and the steps of each part of its training."""
    step: np.ndarray
    passes: np.ndarray
    transfer: np.ndarray
    parts: list[tuple[int, ...]]

    @property
    def whole(self) -> np.ndarray:
        """Return the steps of a whole round, (n,)."""
        return np.array([sum(steps) for steps in self.parts], np.int64)


@dataclass
class SimulatedTime:
    """The clock of the simulated devices. It reads the file of speeds, or raises BadInput."""
    config: Config
    federation: Federation
    ledger: EdgeLedger
    # the section; without it all devices are those of `edge`
    stragglers: Stragglers = field(init=False)
    # by how much each client's device is slower than the median one, (N,)
    factors: np.ndarray = field(init=False)
    # seconds of a step at each client, (N,); None: `edge` says it
    step_seconds: np.ndarray | None = field(init=False)

    def __post_init__(self) -> None:
        self.stragglers = self.config.stragglers or Stragglers()
        self.factors = self.stragglers.draw_factors(len(self.federation.sizes), self.config.seed)
        self.step_seconds = self._read_step_seconds()

    def _read_step_seconds(self) -> np.ndarray | None:
        """Return the seconds of a step at each client, (N,), None if `edge` says it. Raises BadInput."""
        settings, n = self.stragglers, len(self.federation.sizes)
        if settings.file is None:
            return None if settings.step_seconds is None else settings.step_seconds * self.factors
        where = f"stragglers.file = {settings.file}"
        table = read_rows(settings.file, "stragglers.file", ("client", "step_seconds"), n)
        counts = np.bincount(table[:, 0].astype(np.int64), minlength=n)
        if (counts != 1).any():
            i = int((counts != 1).argmax())
            raise BadInput(f"{where}: client {i} has {counts[i]} rows; give one for each of the clients 0 to {n - 1}")
        if (table[:, 1] <= 0).any():
            raise BadInput(f"{where}: step_seconds = {table[:, 1].min():g}; it must be above 0")
        seconds: np.ndarray = table[np.argsort(table[:, 0]), 1]
        return seconds

    def count_cost(self, who: Participants, works: list[RoundWork], nbytes: int) -> DeviceCost:
        """Return what each participant's round takes.

        Args:
            works: what each of them computes.
            nbytes: bytes that it receives and sends."""
        n, edge = len(self.federation.sizes), self.config.edge
        slower = self.stragglers.draw_jitter(n, self.config.seed, who.round)[who.ids]
        trained, passed, batches = (np.array([getattr(work, name) for work in works], float)
                                    for name in ("trained", "passed", "batches"))
        parts = [work.steps for work in works]
        if self.step_seconds is not None:
            step = self.step_seconds[who.ids] * slower
            passes = step * FORWARD_SHARE * batches
        else:
            assert edge is not None
            sample = edge.cycles / edge.frequency * self.factors[who.ids] * slower
            # the batches of an epoch may differ, so a step takes what they take in the mean
            step = sample * trained / np.maximum(1, [sum(steps) for steps in parts])
            passes = sample * FORWARD_SHARE * passed
        transfer = np.full(len(who.ids), 8 * nbytes / edge.bandwidth if edge else 0.)
        return DeviceCost(step, passes, transfer, parts)

    def time_round(self, who: Participants, nbytes: int, leaving: np.ndarray | None = None,
                   waits: bool = False) -> Timing:
        """Return how the participants spend a round's time.

        Args:
            nbytes: bytes that each receives and sends.
            leaving: after how many seconds each stops being available, (n,); None: never.
            waits: the server waits for all, as before the first round."""
        cost = self.count_cost(who, self.ledger.list_works(who), nbytes)
        whole = cost.whole
        allowed = np.full(len(who.ids), np.inf)
        if not waits:
            allowed = np.minimum(self.stragglers.deadline or np.inf, allowed if leaving is None else leaving)
            allowed = np.broadcast_to(allowed, who.ids.shape)
        finish = cost.transfer + cost.passes + cost.step * whole
        in_time, portions, made = finish <= allowed * (1 + TIME_ROUNDING), np.stack([whole, whole], 1), whole.copy()
        for i in np.flatnonzero(~in_time):
            left = allowed[i] - cost.transfer[i] - cost.passes[i]
            # the part of a step that rounding takes away is not missing
            budget = int(max(0, left) / cost.step[i] + TIME_ROUNDING) if cost.step[i] else 0
            if self.stragglers.late == "drop":
                portions[i, 0] = made[i] = min(budget, whole[i])
                continue
            portion = fit_portion(cost.parts[i], budget)
            portions[i, 0], in_time[i] = (0, False) if portion is None else (portion.made, True)
            made[i] = sum(map(portion.shorten, cost.parts[i])) if portion else 0
        return Timing(in_time, portions, np.minimum(finish, allowed), made / np.maximum(1, whole))

    def time_candidates(self, who: Participants, works: list[RoundWork], nbytes: int) -> np.ndarray:
        """Return the seconds until each of some candidates has received the model and told its loss, (n,).

        Args:
            works: what it takes each to tell its loss.
            nbytes: bytes that it receives and sends."""
        cost = self.count_cost(who, works, nbytes)
        seconds: np.ndarray = cost.transfer + cost.passes + cost.step * cost.whole
        return seconds


def fit_portion(parts: tuple[int, ...], budget: int) -> Portion | None:
    """Return the largest portion of a training for which it makes at most `budget` steps; None if even a single step
    of each part is too much.

    Args:
        parts: the steps of each part of the training."""
    whole = sum(parts)
    low, high = 0, whole
    while low < high:
        middle = (low + high + 1) // 2
        portion = Portion(middle, whole)
        low, high = (middle, high) if sum(map(portion.shorten, parts)) <= budget else (low, middle - 1)
    return Portion(low, whole) if low else None
