"""When clients are available and how fast their devices are, in simulated time: the settings.

server/client_selection.py reads the files, draws speeds and keeps the simulated clock."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedmpi.settings import AtMost, Ge, Gt

# Keep these uses of the seed apart from others.
SPEEDS_STREAM, JITTER_STREAM = 0x57A6, 0x57A7
SPREAD_LIMIT = AtMost(10, "one device would be e^10 times as slow as another")


@dataclass(frozen=True)
class Stragglers:
    """How fast the clients' devices are, and how long the server waits for them, in simulated seconds."""
    title = "stragglers"
    step_seconds: Annotated[float | None, Gt(0), "seconds of a gradient step on the median device; null: what `edge` "
                            "says of the cycles of a sample"] = None
    spread: Annotated[float, Ge(0), SPREAD_LIMIT, "standard deviation of the logarithm of the devices' seconds, drawn "
                      "once for each client; 0: all are alike"] = 0.
    jitter: Annotated[float, Ge(0), SPREAD_LIMIT, "the same from round to round, drawn for each client and round"] = 0.
    file: Annotated[str | None, "CSV or JSON file with the columns client and step_seconds, a row for each client; it "
                    "replaces step_seconds and spread"] = None
    deadline: Annotated[float | None, Gt(0), "seconds after which the server goes on with the updates that it has; "
                        "null: it waits for all"] = None
    late: Annotated[Literal["drop", "partial"], "a participant that would come too late: it is left out, or makes as "
                    "many steps as it manages (FedProx)"] = "drop"

    def __post_init__(self) -> None:
        if self.file and (self.step_seconds or self.spread):
            name, value = ("step_seconds", self.step_seconds) if self.step_seconds else ("spread", self.spread)
            raise ValueError(f"{name} = {value}: the file gives the seconds of each client; leave {name} or file out")

    def draw_factors(self, clients: int, seed: int) -> np.ndarray:
        """Return how many times as long as the median device each client's takes, (N,)."""
        return np.exp(self.spread * np.random.default_rng((seed, SPEEDS_STREAM)).standard_normal(clients))

    def draw_jitter(self, clients: int, seed: int, round: int) -> np.ndarray:
        """Return how many times as long as usually each client takes in a round, (N,); -1 is the round before
        the first."""
        generator = np.random.default_rng((seed, round + 1, JITTER_STREAM))
        return np.exp(self.jitter * generator.standard_normal(clients))


@dataclass(frozen=True)
class Availability:
    """When clients can take part, from a file."""
    title = "availability"
    file: Annotated[str, "CSV or JSON file with the columns client, begin and end, a row for each time; a client "
                    "without a row takes part in no round"]
    unit: Annotated[Literal["rounds", "seconds"], "what begin and end count: rounds from 1, both included; or "
                    "simulated seconds from 0, of which the end is not part"] = "rounds"
    repeat: Annotated[float | None, Gt(0), "after so many rounds or seconds the times begin again; null: never"] = None

    def __post_init__(self) -> None:
        if self.unit == "rounds" and self.repeat is not None and self.repeat % 1:
            raise ValueError(f"repeat = {self.repeat}: give whole rounds, or set unit to seconds")


def list_participation_problems(stragglers: Stragglers | None, availability: Availability | None, edge: bool
                                ) -> list[str]:
    """Return what is wrong with settings that need each other.

    Args:
        edge: the section `edge` is set."""
    problems = []
    if stragglers and not (stragglers.step_seconds or stragglers.file or edge):
        problems.append("stragglers.step_seconds = None: how long does a step take? Set step_seconds or file, or the "
                        "section edge, whose cycles then count")
    if availability and availability.unit == "seconds" and not (stragglers or edge):
        problems.append("availability.unit = seconds: nothing says how many simulated seconds a round takes; set "
                        "stragglers.step_seconds, or set unit to rounds")
    if stragglers and stragglers.late == "partial" and not (
            stragglers.deadline or availability and availability.unit == "seconds"):
        problems.append("stragglers.late = partial: nobody is late without a deadline; set stragglers.deadline, or "
                        "leave late out")
    return problems
