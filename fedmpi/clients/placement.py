"""Which rank hosts which client: the same on every rank, from sizes alone."""
from __future__ import annotations

import numpy as np

TRIFLE = .1           # of a round: less is not worth moving clients, and may be noise
SETTLED = 3           # rounds measured between one time of moving clients and the next
BANDWIDTH = 2e8       # bytes of states moved per second, until it was measured
FIXED = 20            # a client's cost beside its samples, in samples: state moved, evaluation, bookkeeping


def homes(sizes: np.ndarray, ranks: int, server_hosts: bool, how: str = "balanced", seed: int = 0) -> np.ndarray:
    """Return the rank of each client, (N,) int64. Rank 0 hosts none unless it is alone or `server_hosts`."""
    hosts = np.arange(ranks) if server_hosts or ranks == 1 else np.arange(1, ranks)
    if how == "balanced":
        return hosts[longest_first(sizes + FIXED, len(hosts))]
    place = np.arange(len(sizes)) * len(hosts) // len(sizes)
    if how == "shuffled":
        place = np.random.default_rng(seed).permutation(place)
    return hosts[place]


def longest_first(costs: np.ndarray, bins: int, speeds: np.ndarray | None = None) -> np.ndarray:
    """Give each item, the dearest first, to the bin that would finish it first (LPT: at most 4/3 of the best makespan
    where all bins are equally fast)."""
    speeds = np.ones(bins) if speeds is None else speeds
    place, loads = np.empty(len(costs), np.int64), np.zeros(bins)
    for item in np.argsort(-costs, kind="stable"):
        done = (loads + costs[item]) / speeds
        place[item] = best = int(done.argmin())
        loads[best] += costs[item]
    return place


class Pace:
    """How fast each rank works, as measured, and where the participants of a round train (rank 0).

    A client that keeps nothing can train anywhere: its samples are read from the federation where they are needed. So
    the participants of a round are spread evenly, slower ranks getting less; sums are exact, so this changes no bit.
    Clients that keep a state of `row` bytes train at home. Where their `sizes` (N,) are given, some get a new home when
    that pays off: see `moves`."""

    def __init__(self, homes: np.ndarray, movable: bool, sizes: np.ndarray | None = None, row: int = 0):
        self.homes, self.movable, self.row = homes, movable, row
        self.costs = None if sizes is None or movable else sizes + FIXED
        self.bandwidth, self.rounds, self.seconds = BANDWIDTH, 0, 0.      # rounds since a move, and their mean length
        self.hosts = np.unique(homes)
        self.speeds = np.ones(len(self.hosts))      # cost per second, relative
        self.measured = True      # False: ranks count as equally fast, since last bits follow who trains beside whom
        self.at = homes

    def ranks(self, who) -> np.ndarray:
        """Return the rank at which each participant of a round trains, (n,)."""
        if self.movable and len(self.hosts) > 1:
            self.at = self.hosts[longest_first(np.asarray(who.sizes) + FIXED, len(self.hosts), self.speeds)]
        else:
            self.at = self.homes[who.ids]
        return self.at

    def note(self, seconds: np.ndarray, who) -> dict:
        """Take the (ranks, phases) seconds of a round; return its facts: imbalance (max / mean) and idle share."""
        train = seconds[self.hosts, 0]
        costs = np.array([(np.asarray(who.sizes)[self.at == r] + FIXED).sum() for r in self.hosts])
        if (costs > 0).all() and (train > 0).all():
            rate = costs / train
            self.speeds = .5 * self.speeds + .5 * rate / rate.mean() if self.measured else self.speeds
            self.rounds += 1
            self.seconds += (train.max() - self.seconds) / self.rounds
        busy, longest = train.mean(), max(train.max(), 1e-9)
        return {"seconds_train": float(train.max()), "seconds_judge": float(seconds[self.hosts, 1].max()),
                "imbalance": float(longest / max(busy, 1e-9)), "idle_share": float(1 - busy / longest)}

    def moves(self, left: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return clients, ascending, and their new homes, (m,) each, where this saves more in the `left` rounds than it
        takes: one after another from the rank that would finish last to the one that would finish first."""
        if self.costs is None or self.rounds < SETTLED:
            return None
        place = np.searchsorted(self.hosts, self.homes)
        first = place.copy()
        loads = np.bincount(place, self.costs, len(self.hosts)) / self.speeds
        before = loads.max()
        while True:
            slow, fast = loads.argmax(), loads.argmin()
            mine = np.flatnonzero(place == slow)
            less, more = loads[slow] - self.costs[mine] / self.speeds[slow], self.costs[mine] / self.speeds[fast]
            after = np.maximum(less, loads[fast] + more)
            best = after.argmin()
            if not after[best] < loads[slow] * (1 - 1e-9):
                break
            place[mine[best]], loads[slow], loads[fast] = fast, less[best], loads[fast] + more[best]
        ids, saved = np.flatnonzero(place != first), 1 - loads.max() / before
        if saved < TRIFLE or saved * self.seconds * left < len(ids) * self.row / self.bandwidth:
            return None
        return ids, self.hosts[place[ids]]

    def moved(self, homes: np.ndarray, clients: int, seconds: float) -> None:
        """Take the new homes, and what moving so many clients took."""
        self.homes, self.rounds, self.seconds = homes, 0, 0.
        self.bandwidth = clients * self.row / max(seconds, 1e-9)
