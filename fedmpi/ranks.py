"""Who takes part: ranks that do not belong together are refused, and the first lines of a run say which rank is where.
"""
from __future__ import annotations

import hashlib
import json
import os
import platform
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from fedmpi import __version__
from fedmpi.comm.launcher import list_cores
from fedmpi.comm.transport import Transport
from fedmpi.errors import BadInput
from fedmpi.json_values import Json, JsonObject
from fedmpi.own_code.places import PACKAGE
from fedmpi.text import drop_addresses, format_columns, format_spans

if TYPE_CHECKING:
    import torch


CUDA_AWARE = "CUDA-aware MPI"
# what ranks may have of their own
MAY_DIFFER = ("host", CUDA_AWARE)


def gather_objects(world: Transport, value: object) -> list[Json]:
    """Return every rank's value at rank 0, in rank order, and an empty list elsewhere. All ranks call it.

    Args:
        value: anything that JSON can hold."""
    text, one_each = np.frombuffer(json.dumps(value).encode(), np.uint8), np.ones(world.size, np.int64)
    lengths = world.gather(np.array([text.size]), one_each)
    texts = world.gather(text, one_each if lengths is None else lengths)
    # Ranks other than 0 receive nothing.
    if lengths is None or texts is None:
        return []
    return [json.loads(part.tobytes()) for part in np.split(texts, lengths.cumsum()[:-1])]


def refuse_mixed(world: Transport, words: list[object]) -> None:
    """Refuse ranks whose program or command line differs from rank 0's, and let rank 0 know where MPI takes GPU memory.
    All ranks call it first.

    Args:
        words: this rank's command line.

    Raises:
        BadInput: at rank 0, with the rank and what differs."""
    cards = gather_objects(world, describe_rank(world, words)) if world.size > 1 else []
    world.cuda_aware_by_rank = [card[CUDA_AWARE] for card in cards]
    for rank, them in enumerate(cards):
        odd = next((name for name in them if name not in MAY_DIFFER and them[name] != cards[0][name]), None)
        if odd:
            remedy = "start all ranks with one command" if odd == "command" else "install the same on all nodes"
            raise BadInput(f"rank {rank} on {them['host']} has {odd} {them[odd]}, rank 0 on {cards[0]['host']} has "
                           f"{cards[0][odd]}; {remedy}")


def refuse_other_ranks(world: Transport, planned: int | None) -> None:
    """Raise BadInput if other ranks were started than were planned: a rank that is alone would compute for days."""
    if planned is not None and world.size != planned:
        raise BadInput(f"--ranks {planned} were planned, but {world.size} started (MPI: {world.library}); start "
                       "as many (srun --ntasks, mpiexec -n), or change the plan: --ranks, or nodes= and ranks= in a "
                       "job script")


def describe_rank(world: Transport, words: list[object]) -> JsonObject:
    """Return what this rank runs, by name. All but MAY_DIFFER has to be the same on all ranks."""
    return {"host": world.host, CUDA_AWARE: world.cuda_aware, "fedmpi": __version__,
            "Python": platform.python_version(), "torch": read_package_version("torch", "unknown"),
            "code": hash_source(), "command": " ".join("-" if word is None else drop_addresses(str(word))
                                                           for word in words)}


def read_package_version(package: str, otherwise: str) -> str:
    """Return a package's version, or `otherwise` if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return otherwise


def hash_source() -> str:
    """Return a short hash of this package's source: a user may have changed an installed version."""
    total = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        total.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    return total.hexdigest()[:12]


def describe_place(world: Transport, device: torch.device, hosts: bool) -> JsonObject:
    """Return where this rank works: host, device, cores, threads, GPU.

    Args:
        device: where this rank trains or evaluates clients.
        hosts: this rank hosts clients."""
    import torch
    here = {"host": world.host, "device": str(device), "cores": list_cores(), "threads": torch.get_num_threads(),
            "hosts": hosts, "gpu": None}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        here["device"] += f" {properties.name}" + (f" of {visible}" if visible else "")
        here["gpu"] = str(getattr(properties, "uuid", f"{visible}:{device.index}"))
    return here


def list_warnings(places: list[JsonObject]) -> list[str]:
    """Return warnings about devices: GPUs that ranks share, and ranks that have none while others do."""
    sharing, found = defaultdict(list), []
    for rank, them in enumerate(places):
        if them["gpu"] and them["hosts"]:
            sharing[them["host"], them["gpu"]].append(rank)
    for (host, _), ranks in sharing.items():
        if len(ranks) > 1:
            found.append(f"ranks {format_spans(ranks)} share one GPU of {host}; one rank per GPU is faster, unless "
                         "a rank leaves its GPU idle")
    without = [rank for rank, them in enumerate(places) if them["hosts"] and not them["gpu"]]
    if sharing and without:
        found.append(f"ranks {format_spans(without)} train on the CPU while others have a GPU, and all wait for the "
                     "slowest; ask for a GPU for each (Slurm: --gpus-per-node), or start fewer ranks")
    return found


def format_hosts(ranks: list[JsonObject]) -> str:
    """Return a table with one row per host, or more if its ranks have different devices."""
    def alike(r: int) -> tuple[str, str, int, int]:
        return ranks[r]["host"], ranks[r]["device"], len(ranks[r]["cores"]), ranks[r]["threads"]
    groups = [(key, list(members)) for key, members in groupby(sorted(range(len(ranks)), key=alike), key=alike)]
    rows = [[key[0], format_spans(members), *key[1:]] for key, members in groups]
    return format_columns(["host", "ranks", "device", "cores", "threads"], rows, right=("cores", "threads"))
