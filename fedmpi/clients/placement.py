"""Which rank hosts which client: the same on every rank, from sizes alone."""
from __future__ import annotations

import numpy as np

FIXED = 20      # a client's cost beside its samples, in samples: state moved, evaluation, bookkeeping


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
    the participants of a round are spread evenly, slower ranks getting less; sums are exact, so this changes no bit."""

    def __init__(self, homes: np.ndarray, movable: bool):
        self.homes, self.movable = homes, movable
        self.hosts = np.unique(homes)
        self.speeds = np.ones(len(self.hosts))      # cost per second, relative
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
            self.speeds = .5 * self.speeds + .5 * rate / rate.mean()
        busy, longest = train.mean(), max(train.max(), 1e-9)
        return {"seconds_train": float(train.max()), "seconds_judge": float(seconds[self.hosts, 1].max()),
                "imbalance": float(longest / max(busy, 1e-9)), "idle_share": float(1 - busy / longest)}
