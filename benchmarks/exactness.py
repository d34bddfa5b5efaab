"""Measure what the same bits on any number of ranks cost: `server.reduce` is exact and float32 by turns.

Figures are CPU seconds of all ranks, because other work on the machine disturbs them less than wall time."""
from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from benchmarks.rig import Rig
from benchmarks.synthetic import SHAPES, Synthetic

HOW = ("exact", "float32")


def measure(world, model="cnn4", shape="cifar100", clients=20, samples=200, batch=10, engine="loop", method="fedavg",
            pairs=10, sums=5, hosts=True) -> dict | None:
    """Return rank 0's table, and None on other ranks.

    A row has the CPU seconds of a whole round and of the server's step alone for both values, and as the ratio 1 plus
    the difference of the steps as a share of the float32 round."""
    pixels, classes = SHAPES[shape]
    settings = {"model": model, "method": method, "train": {"batch": batch}, "engine": engine, "device": "cpu"}
    rig, rows = Rig(world, Synthetic(pixels, classes, np.full(clients, samples)),
                    settings | {"server": {"hosts_clients": hosts}}), []
    for pair in range(pairs + 1):
        # Each of the two is first in every other pair.
        order = HOW[::-1] if pair % 2 else HOW
        rounds, steps = {}, {}
        for how in order:
            use(rig, how)
            rounds[how] = spent(world, lambda t=pair: rig.round(t))
        for how in order:
            use(rig, how)
            steps[how] = spent(world, lambda: repeat(rig.step, sums)) / sums
        # The first pair warms up.
        if pair and world.rank == 0:
            rows.append({"round_exact": rounds["exact"], "round_float32": rounds["float32"],
                         "step_exact": steps["exact"], "step_float32": steps["float32"],
                         "ratio": 1 + (steps["exact"] - steps["float32"]) / rounds["float32"]})
    if world.rank:
        return None
    whole = float(np.median([row["round_exact"] / row["round_float32"] for row in rows]))
    return {"benchmark": "exactness", "model": model, "shape": shape, "clients": clients, "samples": samples,
            "method": method, "engine": engine, "ranks": world.size, "unit": "CPU s",
            "ratio": float(np.median([row["ratio"] for row in rows])), "rows": rows,
            "notes": [f"of whole rounds, in which training varies too: {whole:.4g}"]}


def use(rig: Rig, how: str) -> None:
    """Set how a rig sums from now on. Two rigs would lie at other places in memory, which costs more than sums do."""
    rig.config = rig.parts.pool.hosted.config = replace(rig.config, server=replace(rig.config.server, reduce=how))


def repeat(work, times: int) -> None:
    for _ in range(times):
        work()


def spent(world, work) -> float:
    """Return the CPU seconds of all ranks in work(), at rank 0."""
    # All start together.
    world.barrier()
    begin = time.process_time()
    work()
    mine = np.array([time.process_time() - begin])
    every = world.gather(mine, np.ones(world.size, np.int64))
    return 0. if every is None else float(every.sum())
