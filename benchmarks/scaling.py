"""Measure strong scaling: the same round on all workers and on the first worker alone, in one run."""
from __future__ import annotations

import numpy as np

from benchmarks.rig import Rig
from benchmarks.synthetic import SHAPES, Synthetic
from fedmpi.errors import BadInput


def measure(world, model="cnn4", shape="cifar100", clients=20, samples=100, batch=10, engine="auto",
            repeats=3, device="auto") -> dict | None:
    """Return rank 0's table; the ratio is the speed-up of all workers over one (best: the number of workers)."""
    if world.size < 3:
        raise BadInput("scaling compares several workers with one, and beside rank 0 there are "
                       f"{world.size - 1}; start it with mpiexec -n 3 python -m benchmarks scaling")
    pixels, classes = SHAPES[shape]
    federation = Synthetic(pixels, classes, np.full(clients, samples), tests=0)
    rig = Rig(world, federation, {"model": model, "method": "fedavg", "train": {"batch": batch}, "engine": engine,
                                  "device": device})
    workers = np.unique(rig.parts.pool.homes)
    one = np.full(clients, workers[0])
    rows = []
    for repeat in range(repeats + 1):
        # Each of the two is first in every other repeat.
        order = ("together", "alone") if repeat % 2 else ("alone", "together")
        spent = {how: rig.round(repeat, ranks=one if how == "alone" else None) for how in order}
        if repeat and world.rank == 0:
            rows.append({"one_worker_seconds": spent["alone"], "all_workers_seconds": spent["together"],
                         "ratio": spent["alone"] / spent["together"]})
    return None if world.rank else {
        "benchmark": "scaling", "model": model, "shape": shape, "clients": clients, "samples": samples,
        "workers": len(workers), "ranks": world.size, "engine": rig.parts.pool.hosted.engine.name,
        "ratio": float(np.median([r["ratio"] for r in rows])), "rows": rows}
