"""When a run has to stop by itself: its --time-limit or the end of its Slurm job, whichever comes first.

The run stops after a round when one more round and a checkpoint may not fit any more, by what they took so far. So it
needs no signal, but signals stop it too (see run.Stop). There is no checkpoint inside a round: a round is a function
of what is saved between rounds, and to save what each client sent so far would often take longer than to train it
again. `checkpoint.minutes` bounds the loss where rounds are long, and a round that outlasts `checkpoint.grace` after a
signal is given up (see HostedClients.in_time)."""
from __future__ import annotations

import math
import re
import time
from collections import deque
from dataclasses import dataclass, field

from fedmpi.errors import BadInput
from fedmpi.slurm import job as slurm
from fedmpi.text import duration

MARGIN = 20.      # seconds for the end of the processes, and for clocks that differ
SLOWER = 1.25     # the next round may be so much slower than the slowest of the last ones
MEMORY = 100      # rounds that are looked back at
LIMIT = re.compile(r"(?:(?P<d>\d+)-(?P<h>\d+)(?::(?P<m>\d+)(?::(?P<s>\d+))?)?"
                   r"|(?P<H>\d+):(?P<M>\d+):(?P<S>\d+)|(?P<MM>\d+)(?::(?P<SS>\d+))?)")


@dataclass
class Deadline:
    """The moment at which a run is over, whatever it does."""
    end: float = math.inf      # seconds since 1970
    what: str = ""             # what ends then
    rounds: deque = field(default_factory=lambda: deque(maxlen=MEMORY))      # seconds that the last ones took

    @property
    def known(self) -> bool:
        return self.end < math.inf

    def passed(self, seconds: float, saving: float) -> str:
        """Note what a round took, and the slowest checkpoint; return why the run has to stop, "" when it goes on."""
        self.rounds.append(seconds)
        needed = SLOWER * max(self.rounds) + 2 * saving + MARGIN
        left = self.end - time.time()
        return "" if left > needed else (f"{self.what} ends in {duration(max(left, 0))}, another round and a "
                                         f"checkpoint may take {duration(needed)}")


def deadline(limit: str | None) -> Deadline:
    """Return the earlier one of `limit` from now on and the end of the Slurm job. Raises BadInput."""
    known = []
    if limit is not None:
        known.append((time.time() + seconds_of(limit), f"--time-limit {limit}"))
    end = slurm.end_of_job()
    if end is not None:
        known.append((end, f"Slurm job {slurm.job_id()}"))
    return Deadline(*min(known)) if known else Deadline()


def seconds_of(limit: str, option: str = "--time-limit") -> int:
    """Return a time limit in seconds; it is written as Slurm's: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    match = LIMIT.fullmatch(limit.strip())
    total = 0
    if match:
        d, h, m, s, H, M, S, MM, SS = (int(value or 0) for value in match.groups())
        total = 86400 * d + 3600 * (h + H) + 60 * (m + M + MM) + s + S + SS
    if not total:
        raise BadInput(f"{option} {limit} is no time: give minutes, or as Slurm does 90:00, 01:30:00 or 1-12:00:00")
    return total
