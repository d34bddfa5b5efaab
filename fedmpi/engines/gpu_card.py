"""A rank's GPU: which ranks share it, how much memory each may use, its name, and deterministic kernels."""
from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from fedmpi.config.schema import Config
from fedmpi.errors import BadInput
from fedmpi.text import GIB

if TYPE_CHECKING:
    from fedmpi.comm.transport import Transport

# Bytes that a rank takes on a GPU before it has any tensor: CUDA's context, kernels and libraries.
CUDA_CONTEXT_BYTES = 1 << 30
DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")


class MemoryLimits(NamedTuple):
    """Bytes that a rank may use for each purpose."""
    samples: float
    # states of clients; the others go to a scratch file
    states: float
    # the clients that engine `vmap` trains at once
    chunk: float


def use_deterministic_kernels() -> None:
    """Let kernels add up in the same order in every run. Call this before CUDA starts.

    Operations that have no such kernel still run, with PyTorch's warning."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    # `use_deterministic_algorithms` does the same and imports PyTorch's compiler for it, which takes 3 seconds.
    torch.set_deterministic_debug_mode("warn")
    # fedmpi reads no memory before it has written it, so filling it would only take time.
    torch.utils.deterministic.fill_uninitialized_memory = False


def choose_device(config: Config, world: Transport, server_host: str, hosts: bool) -> torch.device:
    """Return the device on which this rank trains. Ranks that host clients (`hosts`) take the GPUs of their node in
    turn; the server computes on the CPU.

    Args:
        server_host: host of rank 0"""
    if config.device == "cpu" or not hosts or not torch.cuda.is_available():
        if config.device == "cuda" and hosts:
            raise BadInput(f"device = cuda, but PyTorch sees no GPU on {world.host}; see there what nvidia-smi says, "
                           "and whether this PyTorch is built for CUDA; leave the node out if its GPU is ill (sbatch "
                           f"--exclude={world.host}), or set device=auto to train on the CPU where there is no GPU")
        return torch.device("cpu")
    beside_server = world.host == server_host and not config.server.hosts_clients and world.size > 1
    return torch.device("cuda", (world.local_rank - beside_server) % torch.cuda.device_count())


def count_ranks_on_gpu(world: Transport, device: torch.device) -> int:
    """Return how many ranks work on this rank's GPU, or on its part of one (MIG); 1 on a CPU. Every rank calls it."""
    if world.size == 1:
        return 1
    gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    mark = np.frombuffer(hashlib.sha256(f"{world.host} {gpu}".encode()).digest() if gpu else bytes(32), np.uint8)
    every = world.gather(mark[None], np.ones(world.size, np.int64))
    every = world.broadcast(np.empty((world.size, mark.size), np.uint8) if every is None else every)
    return int((every == mark).all(1).sum()) if gpu else 1


def limit_memory(config: Config, device: torch.device, ranks: int = 1) -> MemoryLimits:
    """Return how much memory a rank may use, of its host or of a GPU that so many ranks share.

    On a GPU a quarter of the rank's share goes to each of samples, states and the clients that train at once; the last
    quarter is for what a step computes. The limits follow from the card alone and not from what is free at the moment,
    since bits may depend on how many clients train at once."""
    asked = config.state.memory * GIB
    if device.type != "cuda":
        return MemoryLimits(asked, asked, asked / 4)
    share = max(0, torch.cuda.get_device_properties(device).total_memory / ranks - CUDA_CONTEXT_BYTES) / 4
    return MemoryLimits(min(asked, share), min(asked, share), share)


def describe_gpu(device: torch.device) -> str:
    """Return GPU, driver and libraries, on which bits may depend; "" for a CPU."""
    if device.type != "cuda":
        return ""
    return (f"{torch.cuda.get_device_name(device)}, driver {read_driver_version()}, torch {torch.__version__}, CUDA "
            f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")


def read_driver_version() -> str:
    """Return the version of the GPU's driver."""
    with suppress(OSError):
        if found := re.search(r"\d+\.\d+(\.\d+)?", DRIVER_VERSION_FILE.read_text()):
            return found[0]
    return "unknown"
