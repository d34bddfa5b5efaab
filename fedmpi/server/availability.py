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
        for bad, what in ((begin < 0, f"begins before {first}"), (end <= begin, "ends before it begins"),
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
        phase = now % self.repeat if self.repeat else now
        left = np.zeros(self.clients)
        open_now = (self.begin <= phase) & (phase < self.end)
        left[self.who[open_now]] = self.end[open_now] - phase
        return left

    def wait_for_next(self, now: float) -> float:
        """Return how long it takes until some client is available, 0 if one is; inf: none will ever be."""
        phase = now % self.repeat if self.repeat else now
        later = self.begin[self.end > phase] - phase
        return float(max(0., later.min())) if len(later) else np.inf

    def count_clients(self) -> int:
        """Return how many clients are available at some time."""
        return len(np.unique(self.who))


def merge_times(who: np.ndarray, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the same times with those of a client that touch or overlap as one, by client and begin.

    Args:
        who, begin, end: client, begin and end of each time, (m,)."""
    merged: list[list[float]] = []
    for client, first, last in sorted(zip(who.tolist(), begin.tolist(), end.tolist(), strict=True)):
        if merged and merged[-1][0] == client and first <= merged[-1][2]:
            merged[-1][2] = max(merged[-1][2], last)
        else:
            merged.append([client, first, last])
    table = np.array(merged)
    return table[:, 0].astype(np.int64), table[:, 1], table[:, 2]
