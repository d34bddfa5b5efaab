"""Measure strong scaling: the same round on all workers and on the first worker alone, in one run."""
from __future__ import annotations

import numpy as np

from benchmarks.rig import Rig
from benchmarks.synthetic import SHAPES, Synthetic


def measure(world, model="cnn4", shape="cifar100", clients=20, samples=100, batch=10, engine="auto",
            repeats=3, device="auto") -> dict | None:
    """Return rank 0's table; the ratio is the speed-up of all workers over one (best: the number of workers)."""
    pixels, classes = SHAPES[shape]
    federation = Synthetic(pixels, classes, np.full(clients, samples), tests=0)
    rig = Rig(world, federation, {"model": model, "method": "fedavg", "train": {"batch": batch}, "engine": engine,
                                  "device": device})
    workers = np.unique(rig.parts.pool.homes)
    one = np.full(clients, workers[0])
    rows = []
    for repeat in range(repeats + 1):
        alone, together = rig.round(repeat, ranks=one), rig.round(repeat)
        if repeat and world.rank == 0:
            rows.append({"one_worker_seconds": alone, "all_workers_seconds": together, "ratio": alone / together})
    return None if world.rank else {
        "benchmark": "scaling", "model": model, "shape": shape, "clients": clients, "samples": samples,
        "workers": len(workers), "ranks": world.size, "engine": rig.parts.pool.hosted.engine.name,
        "ratio": float(np.median([r["ratio"] for r in rows])), "rows": rows}
