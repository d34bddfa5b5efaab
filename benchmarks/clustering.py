"""Time the server's k-means on heads for growing numbers of clients."""
from __future__ import annotations

import time

import numpy as np
import torch

from fedmpi.clustering.kmeans_and_linkage import kmeans
from fedmpi.errors import BadInput


def measure(world, width=5_130, k=10, largest=1_000, repeats=3, mini_batch=0) -> dict | None:
    """Return rank 0's table of seconds for N = 100, 1000, ... rows of `width` floats in k planted groups, the median
    of some repeats.

    The ratio is the seconds per row of the largest N over those of the smallest."""
    if largest < 1000:
        raise BadInput(f"largest = {largest}: it is compared with 100 clients; choose 1000 or more")
    if world.rank:
        return None
    # The first call imports scikit-learn.
    kmeans(torch.randn(20, 4), 2, start=None, seed=(0,))
    rows, n = [], 100
    while n <= largest:
        generator = torch.Generator().manual_seed(n)
        centres = torch.randn(k, width, generator=generator)
        heads = centres[torch.arange(n) % k] + .5 * torch.randn(n, width, generator=generator)
        spent = []
        for _ in range(repeats):
            begin = time.perf_counter()
            found = kmeans(heads, k, start=None, seed=(n,), batch=mini_batch)
            spent.append(time.perf_counter() - begin)
        seconds = float(np.median(spent))
        rows.append({"clients": n, "seconds": seconds, "milliseconds_per_client": 1e3 * seconds / n,
                     "iterations": found.iterations, "gathered_mib": n * width * 4 / 2**20})
        n *= 10
    return {"benchmark": "clustering", "width": width, "k": k, "rows": rows,
            "ratio": rows[-1]["milliseconds_per_client"] / rows[0]["milliseconds_per_client"]}
