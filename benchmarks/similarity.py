"""Measure what a round of online clustering costs (LCFed's figure 3): the server's time to assign clients to clusters,
and all clients' bytes. Clients are assigned by low-rank images (LCFed), by cosines or distances of whole models, or by
losses at the clients."""
from __future__ import annotations

import time

import numpy as np
import torch

from benchmarks.traffic import BYTES, ledger
from fedmpi import registry
from fedmpi.clustering.kmeans_and_linkage import find_nearest
from fedmpi.clustering.low_rank import compute_cosines, count_multiply_adds
from fedmpi.models.build import build_model

# those of MNIST
SHAPE, CLASSES = (28, 28, 1), 10


def measure(world, model="lenet5", components=50, largest=1000, repeats=3) -> dict | None:
    """Return rank 0's table of multiply-adds, seconds and MiB down and up.

    `clients_multiply_adds` are those of the clients' images M omega, and `once_mib` is M, which every client receives
    once in a run. N = largest / 10 and N = largest clients take part, in K = N / 10 clusters. The ratio is the seconds
    of low-rank images over those of cosines of whole models, for the larger N."""
    if world.rank:
        return None
    network = build_model(registry.find_class("models", model)(), SHAPE, BYTES, CLASSES, 0)
    ways = (("low-rank cosine", "lcfed", {"D": components}, components, by_cosine),
            ("whole cosine", "cgpfl", {}, network.size, by_cosine),
            ("whole distance", "fesem", {}, network.size, by_distance),
            ("loss at clients", "ifca", {}, 0, None))
    rows = []
    for n in (largest // 10, largest):
        for how, method, settings, length, decide in ways:
            seconds = spent(n, n // 10, length, repeats, decide) if decide else 0.
            rows.append({"similarity": how, "method": method, "clients": n, "clusters": n // 10,
                         "multiply_adds": count_multiply_adds(n, n // 10, length), "seconds": seconds,
                         "clients_multiply_adds": n * components * network.size if method == "lcfed" else 0,
                         "moved_mib": n * ledger(method, network, SHAPE, n // 10, **settings) / 2**20,
                         "once_mib": n * 4 * components * network.size / 2**20 if method == "lcfed" else 0.})
    return {"benchmark": "similarity", "parameters": network.size, "components": components, "rows": rows,
            "ratio": rows[4]["seconds"] / rows[5]["seconds"]}


def spent(n: int, k: int, length: int, repeats: int, decide) -> float:
    """Return the seconds to assign n rows to k centres, the median of some repeats."""
    generator = torch.Generator().manual_seed(n)
    models, centres = (torch.randn(m, length, generator=generator) for m in (n, k))
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        decide(models, centres)
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds))


def by_cosine(models, centres):
    return compute_cosines(models, centres).argmax(1)


def by_distance(models, centres):
    return find_nearest(models.numpy(), centres.numpy())
