"""A small job on the embedded digits, for the tests of sweeps and reports."""
from __future__ import annotations

import json

CONFIG = {"rounds": 2, "model": {"name": "mlp", "hidden": 8},
          "data": {"clients": 6, "partition": {"name": "dirichlet", "beta": .3}},
          "train": {"lr": .05, "steps": 3}, "checkpoint": {"every": 1}}
JOB = {"title": "digits", "config": "c.yaml", "measure": "accuracy_best_on_test",
       "set": {"engine": "loop"}, "scales": {"long": {"rounds": 100000}},
       "rows": {"FedAvg": "fedavg", "FedMHC, weak": {"method": {"name": "fedmhc", "lam": .01}}, "Local": "local"},
       "columns": {"beta .3": {}, "beta 1": {"data": {"partition": {"name": "dirichlet", "beta": 1}}}},
       "seeds": [0], "published": {"FedAvg": {"beta .3": [31.89, .44]}, "Local": {"beta .3": 50}}}


def write(folder, cache, **changed) -> str:
    """Write the job and its configuration into a folder; return the job's path."""
    (folder / "c.yaml").write_text(json.dumps(CONFIG | {"data": CONFIG["data"] | {"cache": str(cache)}}))
    path = folder / "job.yaml"
    path.write_text(json.dumps(JOB | changed))
    return str(path)
