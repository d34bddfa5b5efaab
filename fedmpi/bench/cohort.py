"""The shape of pfl-research's CIFAR10 benchmark: 1000 clients of 50 images, 50 a round, batch 10, one epoch, a CNN of
two layers, judged every 10 rounds. The pixels are random: only time counts."""
from __future__ import annotations

import numpy as np

from fedmpi.bench.bare import Bare
from fedmpi.bench.rig import Rig
from fedmpi.bench.synthetic import SHAPES, Synthetic


def measure(world, clients=1000, samples=50, participants=50, batch=10, rounds=3, model="cnn4", engine="auto",
            device="auto", hosts=False) -> dict | None:
    """Return rank 0's table; the ratio is a round's seconds over a bare loop's of the same steps on one core."""
    pixels, classes = SHAPES["cifar10"]
    rig = Rig(world, Synthetic(pixels, classes, np.full(clients, samples), tests=0), {
        "model": model, "method": "fedavg", "train": {"batch": batch}, "engine": engine, "device": device,
        "server": {"hosts_clients": hosts}})
    federation, rows = rig.parts.federation, []
    own = [federation.client(c)[:2] for c in range(participants)]
    bare = Bare(rig.network, own, batch) if world.rank == 0 else None
    for t in range(rounds + 1):
        alone, steps = rig.slowest(bare.run if bare else lambda: (0., 0))
        seconds = rig.round(t, participants / clients)
        if t and world.rank == 0:
            rows.append({"bare_seconds": alone, "round_seconds": seconds, "ratio": seconds / alone,
                         "steps_per_second": steps / seconds})
    return None if world.rank else {
        "benchmark": "cohort", "clients": clients, "samples": samples, "participants": participants, "batch": batch,
        "model": model, "engine": rig.parts.crew.group.engine.name, "ranks": world.size,
        "ratio": float(np.median([r["ratio"] for r in rows])), "rows": rows}
