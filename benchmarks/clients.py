"""Measure what idle clients cost: rounds with the same number of participants among few and among many clients."""
from __future__ import annotations

import resource
import time

import numpy as np

from benchmarks.rig import Rig
from benchmarks.synthetic import SHAPES, Synthetic


def measure(world, few=100, many=10_000, participants=50, model="cnn4", shape="cifar10", samples=20, method="fedmhc",
            repeats=3) -> dict | None:
    """Return rank 0's table; the ratio is the seconds of a round among `many` clients over those among `few`.

    The same participants, equally many of each worker, train in all rounds, and the first one, which is not counted,
    makes their samples."""
    pixels, classes = SHAPES[shape]
    rigs, started, ids, rows = {}, {}, {}, []
    for name, clients in (("few", few), ("many", many)):
        begin = time.perf_counter()
        rigs[name] = Rig(world, Synthetic(pixels, classes, np.full(clients, samples), tests=0),
                         {"model": model, "method": method})
        started[name] = time.perf_counter() - begin
        ids[name] = choose_evenly(rigs[name].parts.pool.homes, participants)
    for repeat in range(repeats + 1):
        # Each of the two is first in every other repeat.
        order = ("many", "few") if repeat % 2 else ("few", "many")
        seconds = {name: rigs[name].round(repeat, ids=ids[name]) for name in order}
        peak = world.gather(np.array([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20]),
                            np.ones(world.size, np.int64))
        if repeat and world.rank == 0:
            rows.append({"few_seconds": seconds["few"], "many_seconds": seconds["many"],
                         "ratio": seconds["many"] / seconds["few"],
                         "largest_rank_gib": float(peak.max())})
    return None if world.rank else {
        "benchmark": "clients", "few": few, "many": many, "participants": participants, "model": model,
        "method": method, "ranks": world.size, "start_few_seconds": started["few"],
        "start_many_seconds": started["many"], "ratio": float(np.median([r["ratio"] for r in rows])), "rows": rows}


def choose_evenly(homes: np.ndarray, participants: int) -> np.ndarray:
    """Return clients, ascending, of which every rank that hosts some has equally many, or one more.

    Args:
        homes: the rank that hosts each client, (N,)"""
    place = np.empty(len(homes), np.int64)
    for rank in np.unique(homes):
        own = np.flatnonzero(homes == rank)
        place[own] = np.arange(len(own))
    return np.sort(np.argsort(place, kind="stable")[:participants])
