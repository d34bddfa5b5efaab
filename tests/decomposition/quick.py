"""The part of the suite that runs with the tests: methods of every kind share one table of runs."""
from __future__ import annotations

from tests.decomposition.design import cover

# method -> network, scenario, engines. They cover private states and clusters; messages to clients; a sparse table and
# a median; BatchNorm's statistics; a server with tables by client number.
KINDS = {"fedmhc": ("mlp", "noise", ("vmap 3", "loop")), "fedamp": ("mlp", "lost", ("vmap 1", "vmap all")),
         "fedavg": ("table", "median", ("loop",)), "fedper": ("batchnorm local", "skipped", ("loop",)),
         "cfl": ("convolutions", "plain", ("loop",))}
FACTORS = {"method": tuple(KINDS), "ranks": (3, 2, 5), "restart": ("none", "3 after 1", "1 after 2"),
           "engine": ("loop", "vmap 3", "vmap 1", "vmap all"), "placement": ("moving", "balanced", "shuffled"),
           "server": ("only serves", "hosts clients"), "state": ("in memory", "spilled")}


def allowed(row: dict) -> bool:
    return not {"method", "engine"} <= row.keys() or row["engine"] in KINDS[row["method"]][2]


def designs() -> dict[str, list[dict]]:
    """Return the runs of each method; together they have every pair of values of FACTORS and of methods."""
    found = {name: [] for name in KINDS}
    for row in cover(FACTORS, allowed):
        network, scenario, _ = KINDS[row["method"]]
        how = {factor: value for factor, value in row.items() if factor != "method"}
        found[row["method"]].append({"scenario": scenario, "network": network, **how, "threads": 1})
    return found
