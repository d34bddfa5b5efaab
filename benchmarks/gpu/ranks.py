"""Time a sum and a broadcast of numbers in a GPU's memory, for each way to hand them to fedmpi's transport.

    mpiexec -n RANKS python -m benchmarks.gpu.ranks DEVICE NUMBERS

Rank 0 prints one line of JSON per way."""
from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch

from benchmarks.gpu.clock import wait
from fedmpi.comm.gpu_staging import is_cuda_aware
from fedmpi.comm.mpi_world import open_world

# after one that warms up
REPEATS = 7


def main(device: str, numbers: int) -> None:
    world = open_world()
    from mpi4py import MPI
    source = torch.arange(numbers, device=device)

    def staged(pinned: bool):
        host = torch.empty(numbers, dtype=torch.int64, pin_memory=pinned and device == "cuda").copy_(source)
        world.reduce(host.numpy())

    def direct():
        # The sum is made in place.
        copy = source.clone()
        torch.cuda.synchronize()
        world.reduce(copy)

    def broadcast():
        buffer = source.cpu().numpy()
        world.broadcast(buffer)
        torch.from_numpy(buffer).to(device)
        wait(device)
    ways = {"reduce from pinned memory": lambda: staged(True), "reduce from pageable memory": lambda: staged(False),
            "broadcast and copy": broadcast}
    if device == "cuda" and is_cuda_aware(MPI):
        ways["reduce from the GPU's memory"] = direct
    for name, way in ways.items():
        spent = []
        for _ in range(REPEATS + 1):
            world.barrier()
            begin = time.perf_counter()
            way()
            world.barrier()
            spent.append(time.perf_counter() - begin)
        if world.rank == 0:
            print(json.dumps({"what": f"{name}, {numbers:,} numbers", "ms": 1e3 * float(np.median(spent[1:])),
                              "error": ""}), flush=True)
    world.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
