"""Time a round without local steps, that is what a round costs beside training."""
from __future__ import annotations

import time

import numpy as np

from benchmarks.rig import Rig
from benchmarks.synthetic import Synthetic
from fedmpi.errors import BadInput
from fedmpi.memory_check import refuse_larger

# So many copies of the parameters are in memory at once.
VECTORS = 8


def measure(world, parameters=1_000_000, clients=100, repeats=10) -> dict | None:
    """Return rank 0's table: seconds and MiB of a round in which clients send back what they received.

    The ratio is a round's seconds over those of one copy in memory of the bytes that the server sends and receives."""
    if world.size < 2:
        raise BadInput("collectives measures what ranks send each other, and there is one; start it with mpiexec -n 3 "
                       "python -m benchmarks collectives")
    refuse_larger(VECTORS * 4 * parameters, f"parameters = {parameters}: these vectors", "choose fewer")
    features = max(1, parameters // 20 - 11)
    rig = Rig(world, Synthetic((features,), 10, np.ones(clients, np.int64), tests=0), {
        "model": {"name": "mlp", "hidden": 20}, "method": "benchmarks.echo:Echo", "engine": "loop"})
    rows = []
    for repeat in range(repeats + 1):
        before = world.sent + world.received
        seconds = rig.round(repeat)
        moved = world.sent + world.received - before
        if repeat and world.rank == 0:
            rows.append({"round_seconds": seconds, "moved_mib": moved / 2**20, "ratio": seconds / copying(moved)})
    return None if world.rank else {
        "benchmark": "collectives", "parameters": rig.parts.method.model.size, "clients": clients,
        "ranks": world.size, "median_seconds": float(np.median([r["round_seconds"] for r in rows])),
        "ratio": float(np.median([r["ratio"] for r in rows])), "rows": rows}


def copying(nbytes: int, tries: int = 5) -> float:
    """Return the seconds of a copy of so many bytes in memory, the best of some tries."""
    source, target = np.ones((2, max(nbytes, 1)), np.uint8)
    seconds = []
    for _ in range(tries):
        begin = time.perf_counter()
        target[:] = source
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
