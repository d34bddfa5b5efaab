"""Compare settings of local training with plain SGD, by CPU seconds of the same clients and steps in one process."""
from __future__ import annotations

import dataclasses
import time

import numpy as np

from benchmarks.rig import Rig
from benchmarks.synthetic import SHAPES, Synthetic
from fedmpi.clients.state_store import copy_to_numpy
from fedmpi.config.schema import Train

# name -> settings that differ from plain SGD; the others are compared with the first one.
VARIANTS = {"sgd": {}, "momentum": {"momentum": .9}, "adamw": {"optimizer": "adamw", "weight_decay": .01},
            "clip": {"clip_norm": 1.}, "smoothing": {"label_smoothing": .1}, "augment": {"augment": ("crop", "flip")}}


def measure(world, model="cnn4", shape="cifar10", clients=10, samples=100, batch=10, engine="loop",
            repeats=5) -> dict | None:
    """Return rank 0's table of CPU seconds per setting, measured by turns; the ratio is AdamW / plain SGD."""
    pixels, classes = SHAPES[shape]
    rig = Rig(world, Synthetic(pixels, classes, np.full(clients, samples)), {
        "model": model, "train": {"batch": batch}, "engine": engine, "device": "cpu",
        "server": {"hosts_clients": True}})
    group, ids = rig.parts.pool.hosted, np.arange(clients)
    variants = {name: how for name, how in VARIANTS.items() if name != "augment" or len(pixels) == 3}
    rows = []
    for repeat in range(repeats + 1):
        row = {}
        for name, how in variants.items():
            group.config = dataclasses.replace(rig.config, train=Train(batch=batch, **how))
            group.receive_shared([True] * len(rig.shared), [copy_to_numpy(v) for v in rig.shared])
            begin = time.process_time()
            group.train(0, ids, group.clients, False)
            row[f"{name}_seconds"] = time.process_time() - begin
        # The first repeat warms up.
        if repeat:
            rows.append(row | {"ratio": row["adamw_seconds"] / row["sgd_seconds"]})
    over = {f"{name}_over_sgd": float(np.median([row[f"{name}_seconds"] / row["sgd_seconds"] for row in rows]))
            for name in variants if name != "sgd"}
    return None if world.rank else {
        "benchmark": "training", "model": model, "shape": shape, "clients": clients, "samples": samples, "batch": batch,
        "engine": group.engine.name, **over, "ratio": over["adamw_over_sgd"], "rows": rows}
