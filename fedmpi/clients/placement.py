"""Which rank hosts which client, and where participants train. Every rank works out the same homes, from the clients'
sizes and the settings alone."""
from __future__ import annotations

import numpy as np

from fedmpi.json_values import JsonObject
from fedmpi.method import Participants

# Move clients only if that saves this share of a round; a smaller saving may be noise.
MIN_SAVING = .1
# Measure so many rounds after clients were moved before they are moved again.
ROUNDS_BETWEEN_MOVES = 3
# Bytes of states that are moved per second, until this was measured.
FIRST_BANDWIDTH = 2e8
# A client's cost beside its training samples (moving its state, evaluation, bookkeeping), in samples.
FIXED_COST = 20
# What a round leaves of the distance from the mean of the speed that a rank without participants had.
FADING = .98


def assign_homes(sizes: np.ndarray, ranks: int, server_hosts: bool, how: str = "balanced", seed: int = 0) -> np.ndarray:
    """Return the rank that hosts each client, (N,) int64.

    Args:
        sizes: training samples of each client, (N,)
        ranks: number of ranks
        server_hosts: rank 0 hosts clients, too; it always does if it is alone
        how: `balanced` by size, `blocks` of neighbouring numbers, or `shuffled` blocks
        seed: for `shuffled`"""
    hosts = np.arange(ranks) if server_hosts or ranks == 1 else np.arange(1, ranks)
    if how == "balanced":
        return hosts[place_longest_first(sizes + FIXED_COST, len(hosts))]
    place = np.arange(len(sizes)) * len(hosts) // len(sizes)
    if how == "shuffled":
        place = np.random.default_rng(seed).permutation(place)
    return hosts[place]


def place_longest_first(costs: np.ndarray, bins: int, speeds: np.ndarray | None = None) -> np.ndarray:
    """Return the bin of each item, (n,). The most expensive item is placed first, each into the bin that would finish
    it first (LPT). If all bins are equally fast, the last one finishes after at most 4/3 of the best possible time.

    Args:
        costs: (n,)
        bins: number of bins
        speeds: cost per second of each bin, (bins,); None: all are equally fast"""
    speeds = np.ones(bins) if speeds is None else speeds
    place, loads = np.empty(len(costs), np.int64), np.zeros(bins)
    for item in np.argsort(-costs, kind="stable"):
        done = (loads + costs[item]) / speeds
        place[item] = best = int(done.argmin())
        loads[best] += costs[item]
    return place


class Pace:
    """How fast each rank works, as measured, and where the participants of a round train. Rank 0 has one.

    A client that keeps nothing can train on any rank, which reads its samples from the federation. So the participants
    of a round are spread evenly, and slower ranks get less work; sums are exact, so this changes no bit (where it
    would, see `measured`, ranks count as equally fast). A client that keeps a state trains at home, and some clients
    get a new home if that pays off: see `plan_moves`.

    Args:
        homes: the rank that hosts each client, (N,)
        movable: clients keep nothing
        sizes: training samples of each client, (N,); None: clients never get a new home
        row: bytes of a client's state"""

    def __init__(self, homes: np.ndarray, movable: bool, sizes: np.ndarray | None = None, row: int = 0):
        self.homes, self.movable, self.row = homes, movable, row
        self.costs = None if sizes is None or movable else sizes + FIXED_COST
        self.bandwidth = FIRST_BANDWIDTH
        # rounds since clients were moved, and the mean length of these rounds
        self.rounds, self.seconds = 0, 0.
        # ranks that host clients, and the cost per second of each, relative to their mean
        self.hosts = np.unique(homes)
        self.speeds = np.ones(len(self.hosts))
        # False: ranks count as equally fast, because the last bits depend on which clients train side by side, or
        # on one rank (server.reduce = float32)
        self.measured = True
        # where the participants of this round train
        self.training_ranks = homes

    def choose_ranks(self, who: Participants) -> np.ndarray:
        """Return the rank at which each participant of a round trains, (n,)."""
        if self.movable and len(self.hosts) > 1:
            bins = place_longest_first(np.asarray(who.sizes) + FIXED_COST, len(self.hosts), self.speeds)
            self.training_ranks = self.hosts[bins]
        else:
            self.training_ranks = self.homes[who.ids]
        return self.training_ranks

    def record(self, train_seconds: np.ndarray, evaluation_seconds: np.ndarray, who: Participants) -> JsonObject:
        """Learn from how long each rank trained and evaluated in a round, (ranks,). Return the round's facts for
        metrics.jsonl, among them imbalance (longest training time / mean) and idle share (mean waiting time / longest
        training time)."""
        train = train_seconds[self.hosts]
        costs = np.array([(np.asarray(who.sizes)[self.training_ranks == r] + FIXED_COST).sum() for r in self.hosts])
        if (costs > 0).all() and (train > 0).all():
            rate = costs / train
            self.speeds = .5 * self.speeds + .5 * rate / rate.mean() if self.measured else self.speeds
            self.rounds += 1
            self.seconds += (train.max() - self.seconds) / self.rounds
        elif self.movable:
            # A rank that got nothing is not measured. Its old speed fades, or one slow round could idle it for good.
            mean = self.speeds.mean()
            self.speeds = np.where(costs > 0, self.speeds, mean + FADING * (self.speeds - mean))
        busy, longest = train.mean(), max(train.max(), 1e-9)
        return {"seconds_train": float(train.max()), "seconds_judge": float(evaluation_seconds[self.hosts].max()),
                "imbalance": float(longest / max(busy, 1e-9)), "idle_share": float(1 - busy / longest)}

    def plan_moves(self, left: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return clients, ascending, and their new homes, (m,) each; None if moving clients takes longer than it saves,
        saves less than MIN_SAVING, or comes too soon after the last time (ROUNDS_BETWEEN_MOVES).

        Clients move one after another, from the rank that would finish last to the one that would finish first.

        Args:
            left: number of rounds that are left, in which time would be saved"""
        if self.costs is None or self.rounds < ROUNDS_BETWEEN_MOVES:
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
        if saved < MIN_SAVING or saved * self.seconds * left < len(ids) * self.row / self.bandwidth:
            return None
        return ids, self.hosts[place[ids]]

    def record_moves(self, homes: np.ndarray, clients: int, seconds: float) -> None:
        """Note the new homes, (N,), and how long it took to move so many clients."""
        self.homes, self.rounds, self.seconds = homes, 0, 0.
        self.bandwidth = clients * self.row / max(seconds, 1e-9)
