"""Count what a client receives and sends in a round, in MB as in FedMHC's table II. Nothing is trained."""
from __future__ import annotations

import numpy as np

from fedmpi import registry
from fedmpi.engines.rehearsal import rehearse_loop
from fedmpi.models.build import build_model, make_blank_samples
from fedmpi.server.round_cost import count_printed_bytes

BYTES, CLIENTS = np.dtype("uint8"), 20
DATA = {"CIFAR-100": ((32, 32, 3), 100), "Tiny-ImageNet": ((64, 64, 3), 200)}
METHODS = ("fedavg", "fesem", "ifca", "pfedcam", "fedmhc")
CLUSTERS = {"fedavg": None, "fesem": "k", "ifca": "k", "pfedcam": "K", "fedmhc": "M", "cgpfl": "K", "lcfed": "K"}


def measure(world, clusters=4, models="cnn4,resnet18") -> dict | None:
    """Return rank 0's table, with a row for each method and a column for each data set and network.

    The ratio is FedMHC's bytes over IFCA's in the first column."""
    if world.rank:
        return None
    rows = [{"method": registry.find_class("methods", name).title} for name in METHODS]
    for network in models.split(","):
        for data, (shape, classes) in DATA.items():
            model = build_model(registry.find_class("models", network)(), shape, BYTES, classes, 0)
            for row, name in zip(rows, METHODS, strict=True):
                row[f"{data} {network}"] = count_printed_bytes(ledger(name, model, shape, clusters), 4 * model.size,
                                                   4 * model.head.size)
    mb = {row["method"]: next(v for v in row.values() if isinstance(v, float)) for row in rows}
    return {"benchmark": "traffic", "unit": "MB", "clusters": clusters, "rows": rows,
            "ratio": mb["FedMHC"] / mb["IFCA"]}


def ledger(name: str, model, shape: tuple[int, ...], clusters: int, **settings) -> int:
    """Return the exact bytes that a client receives and sends in a round of a method with so many clusters."""
    settings |= {CLUSTERS[name]: clusters} if CLUSTERS[name] else {}
    method = registry.find_class("methods", name)(**settings).with_model(model)
    shared, mine = method.init(CLIENTS)
    return sum(method.traffic(shared, rehearse_loop(method, shared, mine, make_blank_samples(shape, BYTES))[1]))
