"""Time the local training of the same clients by all engines in one process, and compare their results."""
from __future__ import annotations

import dataclasses
import time

import numpy as np
import torch

from benchmarks.rig import Rig
from benchmarks.synthetic import SHAPES, Synthetic
from fedmpi.clients.state_store import copy_to_numpy
from fedmpi.engines import engine_choice


def measure(world, model="mlp", shape="digits", clients=100, samples=40, batch=10, method="fedavg", repeats=5,
            device="auto", precision="float32") -> dict | None:
    """Return rank 0's table of seconds per engine; the ratio is loop / vmap (above 1: vmap is faster).

    `graphs` is vmap with CUDA graphs; on a CPU its steps are called as vmap's are."""
    pixels, classes = SHAPES[shape]
    rig = Rig(world, Synthetic(pixels, classes, np.full(clients, samples)), {
        "model": model, "method": method, "train": {"batch": batch}, "device": device, "precision": precision,
        "server": {"hosts_clients": True}})
    group, ids = rig.parts.pool.hosted, np.arange(clients)
    engines = {"loop": engine_choice.build_engine("loop", rig.config)} | {
        name: engine_choice.build_engine("vmap", dataclasses.replace(rig.config, cuda_graphs=mode))
        for name, mode in (("vmap", "off"), ("graphs", "on"))}
    rows, found = [], {}
    for repeat in range(repeats + 1):
        row = {}
        for name, group.engine in engines.items():
            begin = time.perf_counter()
            group.receive_shared([True] * len(rig.shared), [copy_to_numpy(v) for v in rig.shared])
            group.train(0, ids, group.clients, False)
            if group.device.type == "cuda":
                torch.cuda.synchronize()
            row[f"{name}_seconds"] = time.perf_counter() - begin
            found[name] = [v for up in group.ups.values() for v in up]
        if repeat:
            rows.append(row | {"ratio": row["loop_seconds"] / row["vmap_seconds"],
                               "graphs_ratio": row["loop_seconds"] / row["graphs_seconds"]})
    # of the method's first descent
    steps = len(group.clients) * -(-samples // batch)
    median = {name: float(np.median([row[f"{name}_seconds"] for row in rows])) for name in engines}
    apart = max(float((a - b).abs().max()) for name in ("vmap", "graphs")
                for a, b in zip(found["loop"], found[name], strict=True))
    return None if world.rank else {
        "benchmark": "engines", "model": model, "shape": shape, "clients": clients, "samples": samples, "batch": batch,
        "method": method, "device": hardware(group.device), "precision": precision, "largest_difference": apart,
        **{f"{name}_steps_per_second": steps / seconds for name, seconds in median.items()},
        "ratio": float(np.median([r["ratio"] for r in rows])), "rows": rows}


def hardware(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU (no CUDA graphs)"
