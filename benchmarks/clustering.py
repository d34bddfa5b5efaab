"""Time the server's k-means on heads for growing numbers of clients."""
from __future__ import annotations

import time

import torch

from fedmpi.clustering.kmeans_and_linkage import kmeans


def measure(world, width=5_130, k=10, largest=1_000, repeats=1, mini_batch=0) -> dict | None:
    """Return rank 0's table of seconds for N = 100, 1000, ... rows of `width` floats in k planted groups.

    The ratio is the seconds per row of the largest N over those of the smallest."""
    if world.rank:
        return None
    rows, n = [], 100
    while n <= largest:
        generator = torch.Generator().manual_seed(n)
        centres = torch.randn(k, width, generator=generator)
        heads = centres[torch.arange(n) % k] + .5 * torch.randn(n, width, generator=generator)
        begin = time.perf_counter()
        for _ in range(repeats):
            found = kmeans(heads, k, start=None, seed=(n,), batch=mini_batch)
        seconds = (time.perf_counter() - begin) / repeats
        rows.append({"clients": n, "seconds": seconds, "milliseconds_per_client": 1e3 * seconds / n,
                     "iterations": found.iterations, "gathered_mib": n * width * 4 / 2**20})
        n *= 10
    return {"benchmark": "clustering", "width": width, "k": k, "rows": rows,
            "ratio": rows[-1]["milliseconds_per_client"] / rows[0]["milliseconds_per_client"]}
