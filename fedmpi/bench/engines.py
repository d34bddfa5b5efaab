"""Both engines on the same clients in one process: seconds of local training, and how far their results are apart."""
from __future__ import annotations

import time

import numpy as np
import torch

from fedmpi.bench.rig import Rig
from fedmpi.bench.synthetic import SHAPES, Synthetic
from fedmpi.clients import choice
from fedmpi.clients.store import as_numpy


def measure(world, model="mlp", shape="digits", clients=100, samples=40, batch=10, method="fedavg", repeats=5,
            device="auto") -> dict | None:
    """Return rank 0's table of seconds per engine; the ratio is loop / vmap (above 1: vmap is faster)."""
    pixels, classes = SHAPES[shape]
    rig = Rig(world, Synthetic(pixels, classes, np.full(clients, samples)), {
        "model": model, "method": method, "train": {"batch": batch}, "device": device,
        "server": {"hosts_clients": True}})
    group, ids = rig.parts.crew.group, np.arange(clients)
    rows, found = [], {}
    for repeat in range(repeats + 1):
        row = {}
        for name in ("loop", "vmap"):
            group.engine = choice.engine(name, rig.config)
            begin = time.perf_counter()
            group.hear([True] * len(rig.shared), [as_numpy(v) for v in rig.shared])
            group.train(0, ids, group.clients, False)
            if group.device.type == "cuda":
                torch.cuda.synchronize()
            row[f"{name}_seconds"] = time.perf_counter() - begin
            found[name] = [v for up in group.ups.values() for v in up]
        if repeat:
            rows.append(row | {"ratio": row["loop_seconds"] / row["vmap_seconds"]})
    apart = max(float((a - b).abs().max()) for a, b in zip(found["loop"], found["vmap"], strict=True))
    return None if world.rank else {
        "benchmark": "engines", "model": model, "shape": shape, "clients": clients, "samples": samples, "batch": batch,
        "method": method, "device": str(group.device), "largest_difference": apart,
        "ratio": float(np.median([r["ratio"] for r in rows])), "rows": rows}
