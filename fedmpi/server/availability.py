"""When clients are available, as the file of `availability` says. Legend: N clients."""
from __future__ import annotations

import numpy as np

from fedmpi.errors import BadInput
from fedmpi.participation import Availability
from fedmpi.server.client_files import read_rows


class AvailableTimes:
    """The times at which clients can take part, half-open and without overlaps, in rounds from 0 or in seconds.

    Args:
        settings: the section `availability`.
        clients: the number of clients N.

    Raises BadInput."""

    def __init__(self, settings: Availability, clients: int):
        self.clients, self.repeat = clients, settings.repeat
        self.in_seconds = settings.unit == "seconds"
        table = read_rows(settings.file, "availability.file", ("client", "begin", "end"), clients)
        who, begin, end = table[:, 0].astype(np.int64), table[:, 1], table[:, 2]
        if not self.in_seconds:
            # rounds are counted from 1 there and from 0 here, and the last one is included there
            begin = begin - 1
        self._refuse_times(settings, who, begin, end)
        if self.repeat:
            # what goes on from the end of one repetition to the begin of the next is one time
            who, begin, end = np.tile(who, 2), np.r_[begin, begin + self.repeat], np.r_[end, end + self.repeat]
        self.who, self.begin, self.end = merge_times(who, begin, end)
        if self.repeat:
            self.end[(self.begin == 0) & (self.end == 2 * self.repeat)] = np.inf

    def _refuse_times(self, settings: Availability, who: np.ndarray, begin: np.ndarray, end: np.ndarray) -> None:
        """Raise BadInput for times that are none."""
        first, where = (0 if self.in_seconds else 1), f"availability.file = {settings.file}"
        wrong = "does not end after it begins" if self.in_seconds else "ends before it begins"
        for bad, what in ((begin < 0, f"begins before {first}"), (end <= begin, wrong),
                          (end > (self.repeat or np.inf), f"ends after availability.repeat = {self.repeat}"),
                          ((begin % 1 + end % 1 > 0) & (not self.in_seconds), "is no whole number of rounds")):
            if bad.any():
                i = int(bad.argmax())
                shown = begin[i] + (0 if self.in_seconds else 1)
                raise BadInput(f"{where}: the time {shown:g} to {end[i]:g} of client {who[i]} {what}; correct it")

    def look_up(self, now: float) -> np.ndarray:
        """Return until when each client stays available, counted from now, (N,); 0: it is not available.

        Args:
            now: the round, from 0, or the simulated seconds so far."""
        return self._measure_left(self._find_phase(now), measure_rounding(now))

    def wait_for_next(self, now: float) -> tuple[float, np.ndarray]:
        """Return how long it takes until some client is available, 0 if one is or none will ever be, and until when
        each client stays available from then on, (N,), as `look_up` does.

        It is looked up at the begin of a time itself: now + wait may be rounded to just before it, when nobody is
        there yet."""
        phase, rounding = self._find_phase(now), measure_rounding(now)
        later = self.begin[self.end - phase > rounding]
        start = max(phase, float(later.min())) if len(later) else phase
        return start - phase, self._measure_left(start, rounding)

    def _find_phase(self, now: float) -> float:
        """Return how much of the current repetition is over."""
        return now % self.repeat if self.repeat else now

    def _measure_left(self, phase: float, rounding: float) -> np.ndarray:
        """Return until when each client stays available, counted from `phase`, (N,); 0: it is not available, or for
        no longer than `rounding`."""
        left = np.zeros(self.clients)
        open_now = (self.begin <= phase) & (self.end - phase > rounding)
        left[self.who[open_now]] = self.end[open_now] - phase
        return left

    def count_clients(self, rounds: int) -> int:
        """Return how many clients are available at some time of a run of so many rounds; when it ends is not known for
        times in seconds, so all of them count."""
        return len(np.unique(self.who if self.in_seconds else self.who[self.begin < rounds]))

    def find_longest(self) -> np.ndarray:
        """Return how long the longest time of each client is, (N,); 0: it has none."""
        longest = np.zeros(self.clients)
        np.maximum.at(longest, self.who, self.end - self.begin)
        return longest


def measure_rounding(now: float) -> float:
    """Return the length of a time that sums of floating-point numbers near `now` may not tell from none. A round in
    which clients were available for so short would not move the clock, and the next one would be the same."""
    return float(8 * np.spacing(now))


def merge_times(who: np.ndarray, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the same times with those of a client that touch or overlap as one, by client and begin.

    Args:
        who: the client of each time, (m,).
        begin: where each begins, (m,).
        end: where each ends, (m,)."""
    merged: list[list[float]] = []
    for client, first, last in sorted(zip(who.tolist(), begin.tolist(), end.tolist(), strict=True)):
        if merged and merged[-1][0] == client and first <= merged[-1][2]:
            merged[-1][2] = max(merged[-1][2], last)
        else:
            merged.append([client, first, last])
    table = np.array(merged)
    return table[:, 0].astype(np.int64), table[:, 1], table[:, 2]
