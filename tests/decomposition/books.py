"""The results of a run that must not depend on its decomposition: the digest, every line of metrics, and every column
of the history."""
from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from fedmpi.storage.history import read_history

# Keys of times, and of figures that follow from times.
TIMES = ("seconds", "imbalance", "idle_share", "clients_moved", "memory", "gpu_memory")
# Keys that depend on the decomposition.
DECOMPOSED = ("bytes_sent_by_server", "bytes_received_by_server", "ranks", "engine_why")


def kept(key: str) -> bool:
    return not key.startswith(TIMES) and key not in DECOMPOSED


def read(folder: Path) -> dict[str, object]:
    """Return the results of a finished run by name, the digest first."""
    result = json.loads((folder / "result.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = {"digest": result["digest"], "lines of metrics.jsonl": len(lines)}
    for line in lines:
        found |= {f"{key} in round {line['round']} of metrics.jsonl": value for key, value in line.items() if kept(key)}
    found |= {f"{key} of result.json": value for key, value in result.items() if kept(key)}
    for name, values in sorted(read_history(folder / "history.h5").items()):
        found[f"{name} of history.h5"] = mark(values)
    return found


def mark(values: np.ndarray) -> str:
    """Return a hash of an array's type, shape and bytes, in which every nan is the same."""
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.array(np.nan, values.dtype), values)
    text = f"{values.dtype} {values.shape}".encode()
    return hashlib.sha256(text + np.ascontiguousarray(values).tobytes()).hexdigest()


def digest(found: dict) -> str:
    """Return one hash of all results of a run."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def first_difference(one: dict, other: dict) -> str | None:
    """Return the first name whose value differs, None if all agree."""
    return next((key for key in {**one, **other} if one.get(key, ...) != other.get(key, ...)), None)
