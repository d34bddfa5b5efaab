"""Trials of `fedmpi doctor`: a file written like a checkpoint, and collectives timed as a run uses them."""
from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedmpi.comm.transport import Transport
from fedmpi.errors import FedmpiError
from fedmpi.storage.atomic import atomic, sync
from fedmpi.storage.hdf5_sink import Sink

# of the file, and of each collective
BYTES = 4 << 20
# A collective is repeated at most this often, and for about so many seconds: on crowded cores one may take that long.
TRIAL_REPEATS = 7
TRIAL_PATIENCE_S = 2.


def write_trial_file(path: Path) -> tuple[float, float]:
    """Write, flush, verify and rename a file like a checkpoint.

    Returns:
        The seconds of it all, and of the flush.

    Raises:
        FedmpiError: if the disk does not give back what was written, or refuses it."""
    import h5py
    begin = time.perf_counter()
    with atomic(path) as part:
        with Sink(part) as sink:
            with h5py.File(sink, "w") as file:
                file["trial"] = np.arange(BYTES // 8)
            sink.check()
        flush = time.perf_counter()
        sync(part)
        flush = time.perf_counter() - flush
        if not is_intact(part):
            raise FedmpiError("the disk does not give back what was written")
    return time.perf_counter() - begin, flush


def is_intact(path: str | Path) -> bool:
    """Say whether the trial file is here and holds what was written."""
    import h5py
    if not os.path.exists(path):
        return False
    try:
        with h5py.File(path, "r", locking=False) as file:
            return np.array_equal(file["trial"][:], np.arange(BYTES // 8))
    except (OSError, KeyError):
        return False


def measure_collectives(world: Transport) -> tuple[float, float, bool]:
    """Return this rank's median seconds of a broadcast and of a reduce, and whether the numbers were right."""
    floats, sums = np.arange(BYTES // 4, dtype=np.float32), []
    buffer = floats.copy() if world.rank == 0 else np.zeros_like(floats)
    down = measure_median_seconds(world, lambda: world.broadcast(buffer))
    up = measure_median_seconds(world, lambda: sums.append(world.reduce(np.full(BYTES // 8, world.rank + 1))))
    right = np.array_equal(buffer, floats)
    if world.rank == 0:
        right &= all((total == world.size * (world.size + 1) // 2).all() for total in sums)
    return down, up, bool(right)


def measure_median_seconds(world: Transport, act: Callable[[], object]) -> float:
    """Return the median seconds of a collective on this rank."""
    seconds = [time_collective(world, act)]
    more = min(TRIAL_REPEATS - 1, int(TRIAL_PATIENCE_S / seconds[0]))
    # The clock of rank 0 decides for all.
    more = int(world.broadcast(np.array([more]))[0])
    return float(np.median(seconds + [time_collective(world, act) for _ in range(more)]))


def time_collective(world: Transport, act: Callable[[], object]) -> float:
    """Return the seconds of one call of a collective, which all ranks begin together."""
    world.barrier()
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin
