"""A rank's GPU: who shares it, how much of its memory the rank may have, what it is, and in which order it adds up."""
from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedmpi.config.schema import GIB, Config

CUDA_CONTEXT_BYTES = 1 << 30      # bytes of a rank on a GPU that hold no tensors: CUDA's context, kernels, libraries
DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")


class MemoryLimits(NamedTuple):
    """Bytes that a rank may have for each purpose."""
    samples: float
    states: float      # of clients; more go to a scratch file
    chunk: float       # clients that engine `vmap` trains at once


def use_deterministic_kernels() -> None:
    """Let this process's GPU add up in the same order in every run; call it before CUDA starts.

    Kernels without such an order are still used, with PyTorch's warning (`warn_only`)."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False      # nothing here reads memory before it writes it


def count_ranks_on_gpu(world, device: torch.device) -> int:
    """Return how many ranks work on this rank's GPU, or part of one (MIG); 1 on a CPU. Every rank calls it."""
    if world.size == 1:
        return 1
    gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    mark = np.frombuffer(hashlib.sha256(f"{world.host} {gpu}".encode()).digest() if gpu else bytes(32), np.uint8)
    every = world.gather(mark[None], np.ones(world.size, np.int64))
    every = world.broadcast(np.empty((world.size, mark.size), np.uint8) if every is None else every)
    return int((every == mark).all(1).sum()) if gpu else 1


def limit_memory(config: Config, device: torch.device, ranks: int = 1) -> MemoryLimits:
    """Return what a rank may have of the memory of its host, or of a GPU that so many ranks share.

    On a GPU samples, states and the chunk that is trained have a quarter of the rank's share each, and a quarter is
    left for what a step computes. It follows from the card alone, not from what is free at the moment: bits may follow
    the chunk."""
    asked = config.state.memory * GIB
    if device.type != "cuda":
        return MemoryLimits(asked, asked, asked / 4)
    share = max(0, torch.cuda.get_device_properties(device).total_memory / ranks - CUDA_CONTEXT_BYTES) / 4
    return MemoryLimits(min(asked, share), min(asked, share), share)


def describe_gpu(device: torch.device) -> str:
    """Say on what a rank computes, as far as bits may depend on it; "" for a CPU."""
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
