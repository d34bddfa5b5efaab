"""Client selection (sampling of participants, availability, stragglers), in simulated time (rank 0).

`train.sampling`, `availability` and `stragglers` say who takes part in a round, and who of them is in time.

Everything follows from the settings, the clients' sizes, the round, the simulated seconds so far, the rounds in which
nobody took part and the files; with sampling loss also from the clients' losses, which are exact on any number of
ranks."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedmpi.config.schema import Config
from fedmpi.data.federation import Federation
from fedmpi.engines.rehearsal import rehearse_loop
from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.method import Method, Participants
from fedmpi.models.build import make_blank_samples
from fedmpi.participation import Stragglers
from fedmpi.server.availability import AvailableTimes
from fedmpi.server.client_files import hash_client_files
from fedmpi.server.edge_cost import EdgeLedger
from fedmpi.server.sampling import count_participants, draw_participants, make_participants
from fedmpi.server.simulated_time import SimulatedTime, Timing
from fedmpi.text import MIB, format_spans

# A candidate sends its loss as a number of 32 bits.
LOSS_BYTES = 4


class SelectedClients(NamedTuple):
    """The participants that were selected for a round, and how they spend its simulated time."""
    # those that were drawn, in time or not
    participants: Participants
    # None: there is no simulated time
    timing: Timing | None
    # simulated seconds of the whole round, with what candidates took and the wait for an available client
    seconds: float
    # what metrics.jsonl says of it
    facts: JsonObject

    @property
    def in_time(self) -> Participants:
        """Return the participants that are in time, if none of them is lost."""
        return self.participants if self.timing is None else self.participants.only(self.timing.in_time)

    @property
    def portions(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the participants that make a part of their steps, (p,), and these portions, (p, 2)."""
        if self.timing is None:
            return np.empty(0, np.int64), np.empty((0, 2), np.int64)
        return self.participants.ids[self.timing.partial], self.timing.portions[self.timing.partial]

    @property
    def made(self) -> np.ndarray | float:
        """Return the part of its steps that each participant makes, (n,)."""
        return 1. if self.timing is None else self.timing.made

    def describe(self) -> str:
        """Return a line on who was too late, or why nobody takes part; "" if there is nothing to tell."""
        number, late = self.participants.round + 1, np.setdiff1d(self.participants.ids, self.in_time.ids).tolist()
        nobody = "" if len(self.in_time.ids) else "; nobody takes part, and the server's state stays"
        if not len(self.participants.ids):
            return f"round {number}: no client is available{nobody}"
        return f"round {number}: clients {format_spans(late)} are too late{nobody}" if late else ""


@dataclass
class ClientSelector:
    """Selects the participants of each round, and keeps their simulated time. It reads the files, or raises BadInput.
    """
    config: Config
    federation: Federation
    ledger: EdgeLedger

    # the clock of the simulated devices; None: no setting says how fast they are
    clock: SimulatedTime | None = field(init=False, default=None)
    # when clients are available; None: always
    times: AvailableTimes | None = field(init=False, default=None)
    # the hashes of the files, which checkpoints and result.json keep
    files: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.files = hash_client_files(self.config)
        if self.config.stragglers is not None or self.config.edge is not None:
            self.clock = SimulatedTime(self.config, self.federation, self.ledger)
        if self.config.availability is not None:
            self.times = AvailableTimes(self.config.availability, len(self.federation.sizes))

    def describe_clients(self) -> list[str]:
        """Return lines on available clients and on slow devices, for the begin of a run."""
        lines, settings, n = [], self.config.stragglers, len(self.federation.sizes)
        if self.times is not None:
            there = self.times.count_clients(self.config.rounds)
            lines.append(f"availability: {there} of {n} clients are available at some time")
        if settings is not None and self.clock is not None:
            seconds = self.clock.step_seconds
            speed = (f"devices up to {self.clock.factors.max():.3g} times as slow as the median one" if seconds is None
                     else f"a step takes {seconds.min():.3g} to {seconds.max():.3g} s")
            limit = f"deadline {settings.deadline:g} s ({settings.late})" if settings.deadline else "no deadline"
            lines.append(f"stragglers: {speed}, {limit}")
        return lines

    def select(self, t: int, clock_s: float, traffic: tuple[int, int], stage: int,
               measure: Callable[[np.ndarray], np.ndarray]) -> SelectedClients:
        """Select the participants of round t, and work out how they spend its time.

        Args:
            clock_s: simulated seconds so far.
            traffic: bytes that a participant receives and sends.
            stage: place of this round's work in the method's list of stages.
            measure: returns the losses (d,) of clients (d,), for sampling loss."""
        self.ledger.stage = stage
        compared: list[int] = []

        def measure_candidates(ids: np.ndarray) -> np.ndarray:
            compared.extend(ids.tolist())
            return measure(ids)
        waited, until = self._look_up(t, clock_s)
        drawn = draw_participants(self.config, t, self.federation.sizes, None if until is None else until > 0,
                                  measure_candidates)
        facts: JsonObject = {} if until is None else {"available": int((until > 0).sum())}
        down, up = traffic
        if compared:
            # those that are chosen would receive the model anyway
            extra = (len(compared) - len(drawn.ids)) * down + len(compared) * LOSS_BYTES
            facts |= {"candidates": len(compared), "mib_candidates": extra / MIB}
        if self.clock is None:
            return SelectedClients(drawn, None, 0., facts)
        choosing = self._time_choice(compared, t, down + LOSS_BYTES, until) if compared else 0.
        leaving = None
        if until is not None and self.is_limited_in_seconds:
            leaving = np.maximum(0, until[drawn.ids] - choosing)
        timing = self.clock.time_round(drawn, up if compared else down + up, leaving)
        if self.config.stragglers is not None or leaving is not None:
            facts["late"] = drawn.ids[~timing.in_time].tolist()
        if self.clock.stragglers.late == "partial":
            there = timing.made[timing.in_time]
            facts["work_share"] = float(there.mean()) if len(there) else 0.
        return SelectedClients(drawn, timing, waited + choosing + timing.seconds, facts)

    @property
    def is_limited_in_seconds(self) -> bool:
        """Return whether clients come and go in simulated seconds."""
        return self.times is not None and self.times.in_seconds

    def _look_up(self, t: int, clock_s: float) -> tuple[float, np.ndarray | None]:
        """Return for how many seconds the server waits for an available client in round t, and until when each client
        is available from then on, (N,), 0 if it is not; None: all always are."""
        if self.times is None:
            return 0., None
        if not self.times.in_seconds:
            return 0., self.times.look_up(t)
        return self.times.wait_for_next(clock_s)

    def _time_choice(self, candidates: list[int], t: int, nbytes: int, until: np.ndarray | None) -> float:
        """Return the seconds until all of some candidates have received the model and told their losses, or left."""
        assert self.clock is not None
        ids = np.array(candidates, np.int64)
        who = make_participants(self.config, t, self.federation.sizes, ids)
        works = {int(n): self.ledger.count_loss_work(int(n)) for n in np.unique(who.sizes)}
        seconds = self.clock.time_candidates(who, [works[int(n)] for n in who.sizes], nbytes)
        if until is not None and self.is_limited_in_seconds:
            seconds = np.minimum(seconds, until[ids])
        return float(seconds.max())

    def time_warm_up(self, who: Participants, traffic: tuple[int, int]) -> float:
        """Return the seconds of the round before the first one, in which the server waits for all."""
        return 0. if self.clock is None else self.clock.time_round(who, sum(traffic), waits=True).seconds

    def describe_files(self) -> JsonObject:
        """Return what checkpoints and result.json say of the files: their hashes, {} if there are none."""
        return {"files": self.files} if self.files else {}

    def refuse_files(self, then: dict[str, str]) -> None:
        """Raise BadInput if the files are not those of a checkpoint.

        Args:
            then: their `files`."""
        for name, digest in self.files.items():
            if then.get(name) != digest:
                raise BadInput(f"{name}: the file has changed since the checkpoint was written; put it back, or start "
                               "a new run with another --out")


def make_client_selector(config: Config, federation: Federation, method: Method) -> ClientSelector:
    """Return the client selection of a run. Raises BadInput for settings that the method or the federation cannot take,
    and for files that cannot be used."""
    n, settings = len(federation.sizes), config.stragglers
    share = config.train.participation
    most = count_participants(share[1] if isinstance(share, tuple) else share, n)
    candidates = config.train.candidates
    if candidates is not None and not most <= candidates <= n:
        raise BadInput(f"train.candidates = {candidates}: up to {most} of the {n} clients take part in a round, and "
                       f"are chosen among them; give a number from {most} to {n}")
    selector = ClientSelector(config, federation, EdgeLedger.from_config(config, method, federation))
    refuse_never_available(selector)
    if selector.clock is None:
        return selector
    shared, mine = method.init(n)
    up = rehearse_loop(method, shared, mine, make_blank_samples(federation.shape, federation.dtype))[1]
    traffic = method.traffic(shared, up)
    if settings is not None:
        refuse_stragglers(settings, method, traffic)
    refuse_short_times(selector, traffic)
    return selector


def refuse_never_available(selector: ClientSelector) -> None:
    """Raise BadInput if nobody is available in any round of the run."""
    times, config = selector.times, selector.config
    if times is None or times.count_clients(config.rounds):
        return
    assert config.availability is not None
    raise BadInput(f"availability.file = {config.availability.file}: no client can take part in any round of this run: "
                   f"the first time begins in round {times.begin.min() + 1:g}, and rounds = {config.rounds}; correct "
                   "the file, or raise rounds")


def refuse_stragglers(settings: Stragglers, method: Method, traffic: tuple[int, int]) -> None:
    """Raise BadInput for a deadline or partial work that the method cannot take.

    Args:
        traffic: bytes that a participant receives and sends."""
    title = method.title
    limit = f"stragglers.late = {settings.late}" if settings.deadline is None else (
        f"stragglers.deadline = {settings.deadline}")
    if (settings.deadline is not None or settings.late == "partial") and not traffic[1]:
        raise BadInput(f"{limit}: clients of {title} send nothing that a server could wait for; leave it out, or take "
                       "another method")
    if settings.late == "partial" and method.needs_full_work:
        raise BadInput(f"stragglers.late = partial: {title} {method.needs_full_work}; set it to drop, or take another "
                       "method")


def refuse_short_times(selector: ClientSelector, traffic: tuple[int, int]) -> None:
    """Raise BadInput if no client would ever be done by the deadline, or before it leaves. Jitter might let one.

    Args:
        traffic: bytes that a participant receives and sends."""
    config, clock, sizes = selector.config, selector.clock, selector.federation.sizes
    assert clock is not None
    everybody = Participants(np.arange(len(sizes)), sizes, 0, config.seed, len(sizes))
    nbytes = traffic[1] if config.train.sampling == "loss" else sum(traffic)
    longest = np.full(len(sizes), np.inf)
    if selector.times is not None and selector.is_limited_in_seconds:
        longest = selector.times.find_longest()
    if clock.stragglers.jitter or clock.time_round(everybody, nbytes, longest).in_time.any():
        return
    # of those that are there at some time
    ends = clock.time_round(everybody, nbytes, waits=True).ends[longest > 0]
    take = f"whole rounds take {ends.min():.3g} to {ends.max():.3g} s"
    if not clock.time_round(everybody, nbytes).in_time.any():
        raise BadInput(f"stragglers.deadline = {clock.stragglers.deadline}: no client would ever be in time; {take}; "
                       "raise it")
    assert config.availability is not None
    raise BadInput(f"availability.file = {config.availability.file}: no client would ever be done before it leaves, "
                   f"after at most {longest.max():.3g} s; {take}; give longer times")
