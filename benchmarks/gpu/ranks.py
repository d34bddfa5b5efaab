"""Time a reduction and a broadcast of numbers in a GPU's memory, for each way to hand them to MPI.

    mpiexec -n RANKS python -m benchmarks.gpu.ranks DEVICE NUMBERS

Rank 0 prints one line of JSON per way."""
from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch

from fedmpi.comm.gpu_staging import is_cuda_aware

REPEATS = 7


def main(device: str, numbers: int) -> None:
    from mpi4py import MPI
    world, lead = MPI.COMM_WORLD, MPI.COMM_WORLD.rank == 0
    source = torch.arange(numbers, device=device)
    target = np.empty(numbers, np.int64) if lead else None

    def staged(pinned: bool):
        host = torch.empty(numbers, dtype=torch.int64, pin_memory=pinned and device == "cuda").copy_(source)
        world.Reduce(host.numpy(), target)

    def direct():
        torch.cuda.synchronize()
        world.Reduce(source, torch.empty_like(source) if lead else None)

    def broadcast():
        buffer = source.cpu().numpy()
        world.Bcast(buffer)
        torch.from_numpy(buffer).to(device)
    ways = {"reduce from pinned memory": lambda: staged(True), "reduce from pageable memory": lambda: staged(False),
            "broadcast and copy": broadcast}
    if device == "cuda" and is_cuda_aware(MPI):
        ways["reduce from the GPU's memory"] = direct
    for name, way in ways.items():
        spent = []
        for _ in range(REPEATS + 1):
            world.Barrier()
            begin = time.perf_counter()
            way()
            world.Barrier()
            spent.append(time.perf_counter() - begin)
        if lead:
            print(json.dumps({"what": name, "ms": 1e3 * float(np.median(spent[1:])), "error": ""}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
