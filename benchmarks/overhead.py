"""Time a fedmpi round and a bare PyTorch loop that take the same SGD steps, on the same cores, in one run."""
from __future__ import annotations

import numpy as np

from benchmarks.bare import Bare
from benchmarks.rig import Rig
from benchmarks.synthetic import SHAPES, Synthetic
from fedmpi.ranks import gather_objects


def measure(world, model="cnn4", shape="cifar100", clients=20, samples=200, batch=10, engine="loop",
            repeats=5, device="auto", hosts=False) -> dict | None:
    """Return rank 0's table, with the seconds of both, their ratio and steps per second; None on other ranks.

    Under mpiexec the bare loop runs at the same time on every rank that hosts clients, over that rank's clients; its
    seconds are the slowest rank's."""
    pixels, classes = SHAPES[shape]
    sizes = np.full(clients, samples)
    rig = Rig(world, Synthetic(pixels, classes, sizes), {
        "model": model, "method": "fedavg", "train": {"batch": batch}, "engine": engine, "device": device,
        "server": {"hosts_clients": hosts}})
    group = rig.parts.pool.hosted
    own = [rig.parts.federation.client(c)[:2] for c in group.clients]
    bare = Bare(lambda: rig.network(), own, batch, device=str(group.device)) if own else None
    rows = []
    for repeat in range(repeats + 1):
        slowest, steps = rig.slowest(bare.run if bare else lambda: (0., 0))
        seconds = rig.round(repeat)
        # The first repeat warms up.
        if repeat and world.rank == 0:
            rows.append({"bare_seconds": slowest, "round_seconds": seconds, "ratio": seconds / slowest,
                         "bare_steps_per_second": steps / slowest, "steps_per_second": steps / seconds})
    # With a GPU, rank 0 may have none.
    devices = gather_objects(world, str(group.device))
    if world.rank:
        return None
    return {"benchmark": "overhead", "model": model, "shape": shape, "clients": clients, "samples": samples,
            "batch": batch, "engine": engine, "method": "fedavg", "ranks": world.size, "device": devices[-1],
            "ratio": float(np.median([r["ratio"] for r in rows])), "rows": rows}
