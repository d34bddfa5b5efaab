"""When a run has to stop by itself: at its --time-limit or at the end of its Slurm job, whichever comes first.

The run stops after a round if one more round and a checkpoint may not fit any more, judged by what they took so far.
So it needs no signal, but signals stop it too (stop_signals.StopFlag). There is no checkpoint inside a round: a round
is a function of what is saved between rounds, and saving what each client sent so far would often take longer than
training it again. `checkpoint.minutes` bounds the loss if rounds are long, and a round that outlasts `checkpoint.grace`
after a signal is given up (see HostedClients.check_grace and RankPool.call)."""
from __future__ import annotations

import math
import re
import time
from collections import deque
from dataclasses import dataclass, field

from fedmpi.errors import BadInput
from fedmpi.slurm.job import SlurmJob
from fedmpi.text import format_duration

# Time for the processes to end, and for clocks that differ.
END_MARGIN_S = 20.
# The next round may take so many times as long as the slowest of the last ones.
ROUND_SLOWDOWN = 1.25
# So many of the last rounds are looked at for the slowest one.
ROUNDS_REMEMBERED = 100
# Ten years: the end of a longer limit may have no date.
LONGEST_LIMIT_S = 10 * 366 * 86400
TIME_LIMIT = re.compile(r"(?:(?P<d>\d+)-(?P<h>\d+)(?::(?P<m>\d+)(?::(?P<s>\d+))?)?"
                        r"|(?P<H>\d+):(?P<M>\d+):(?P<S>\d+)|(?P<MM>\d+)(?::(?P<SS>\d+))?)", re.ASCII)


@dataclass
class Deadline:
    """The moment at which a run is over, whatever it does.

    Args:
        end: that moment, in seconds since 1970
        what: what ends then, for messages
        unknown: what to warn of if there may be such a moment, and nobody knows it
        round_seconds: how long the last rounds took"""
    end: float = math.inf
    what: str = ""
    unknown: str = ""
    round_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_REMEMBERED))

    @property
    def known(self) -> bool:
        """True if there is such a moment."""
        return self.end < math.inf

    def find_reason_to_stop(self, round_seconds: float, checkpoint_seconds: float) -> str:
        """Remember what a round took, and tell whether the run has to stop now.

        Args:
            round_seconds: what the last round took.
            checkpoint_seconds: what the slowest checkpoint so far took.
        Returns:
            Why the run has to stop; "" if it goes on."""
        self.round_seconds.append(round_seconds)
        needed = ROUND_SLOWDOWN * max(self.round_seconds) + 2 * checkpoint_seconds + END_MARGIN_S
        left = self.end - time.time()
        return "" if left > needed else (f"{self.what} ends in {format_duration(max(left, 0))}, another round and a "
                                         f"checkpoint may take {format_duration(needed)}")


def find_deadline(limit: str | None) -> Deadline:
    """Return the earlier one of two ends: `limit` from now on, and that of the Slurm job. Raises BadInput."""
    known = []
    if limit is not None:
        known.append((time.time() + parse_time_limit(limit), f"--time-limit {limit}"))
    job = SlurmJob.from_env()
    end = job.find_end()
    if end is not None:
        known.append((end, f"Slurm job {job.name}"))
    if known:
        return Deadline(*min(known))
    return Deadline(unknown=f"Slurm does not say when job {job.name} ends, so the run does not stop by itself in time; "
                            "give it --time-limit" if job.name else "")


def parse_time_limit(limit: str, option: str = "--time-limit") -> int:
    """Return a time limit in seconds.

    Args:
        limit: as Slurm writes it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S.
        option: the option that gave it, for the message.
    Raises:
        BadInput: if it is not a time, zero, or longer than ten years."""
    match = TIME_LIMIT.fullmatch(limit.strip()[:100])
    total = 0
    if match:
        d, h, m, s, H, M, S, MM, SS = (int(value or 0) for value in match.groups())
        total = 86400 * d + 3600 * (h + H) + 60 * (m + M + MM) + s + S + SS
    if not total:
        raise BadInput(f"{option} {limit} is not a time: give minutes, or as Slurm does 90:00, 01:30:00 or 1-12:00:00")
    if total > LONGEST_LIMIT_S:
        raise BadInput(f"{option} {limit[:40]} is longer than ten years: leave it out, or give what a job may take")
    return total
