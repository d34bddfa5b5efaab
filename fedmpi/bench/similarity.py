"""What the server pays a round to see which cluster each client is like (LCFed's figure 3): by low-rank images, and by
whole models as FeSEM does (distances) or a server that compares models does (cosines)."""
from __future__ import annotations

import time

import numpy as np
import torch

from fedmpi.server.clustering import nearest
from fedmpi.server.similarity import cosines, multiply_adds


def measure(world, parameters=61_706, components=50, repeats=3) -> dict | None:
    """Return rank 0's table of multiply-adds, seconds and gathered MiB for (N, K) = (100, 10) and (1000, 100).

    The ratio is the seconds of low-rank images over those of cosines of whole models, at the larger size."""
    if world.rank:
        return None
    rows = [cost(n, k, length, repeats, how, decide) for n, k in ((100, 10), (1000, 100)) for how, length, decide in (
        ("low-rank cosine", components, by_cosine), ("whole cosine", parameters, by_cosine),
        ("whole distance", parameters, by_distance))]
    return {"benchmark": "similarity", "parameters": parameters, "components": components, "rows": rows,
            "ratio": rows[3]["seconds"] / rows[4]["seconds"]}


def cost(n: int, k: int, length: int, repeats: int, how: str, decide) -> dict:
    """Return one row of the table: the median of some repeats."""
    generator = torch.Generator().manual_seed(n)
    models, centres = (torch.randn(m, length, generator=generator) for m in (n, k))
    spent = []
    for _ in range(repeats):
        begin = time.perf_counter()
        decide(models, centres)
        spent.append(time.perf_counter() - begin)
    return {"similarity": how, "clients": n, "clusters": k, "multiply_adds": multiply_adds(n, k, length),
            "seconds": float(np.median(spent)), "gathered_mib": n * length * 4 / 2**20}


def by_cosine(models, centres):
    return cosines(models, centres).argmax(1)


def by_distance(models, centres):
    return nearest(models.numpy(), centres.numpy())
