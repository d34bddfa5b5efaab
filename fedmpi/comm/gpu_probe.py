"""Does MPI really take this GPU's memory between these ranks? A library that says so may still fail: built for another
CUDA, kept from a neighbour's GPU by the scheduler, ... So a megabyte is sent before a run believes it."""
from __future__ import annotations

import numpy as np

from fedmpi.comm.gpu_staging import wait_for_gpu
from fedmpi.errors import BadInput

NUMBERS = np.arange(1 << 17)      # a megabyte of int64


def probe_gpu_memory(asked: str, world, device, straight: bool) -> tuple[bool, str]:
    """Return whether this rank hands its GPU's memory to MPI, and why not where it was meant to. Every rank calls it.
    Raises BadInput where `comm.cuda_aware: on` asks for what does not work."""
    if world.size == 1 or asked == "off" or asked == "auto" and not world.cuda_aware:
        return False, ""
    why = to_itself(world, device) if straight else ""
    why = to_others(world, device, straight and not why) or why
    if straight and why and asked == "on":
        raise BadInput(f"comm.cuda_aware = on, but {why}; set it to auto or off")
    return straight and not why, why if straight else ""


def to_itself(world, device) -> str:
    """Send a megabyte of this rank's GPU to itself: needs no other rank, which would wait for ever where it fails."""
    try:
        there = filled(NUMBERS, device)
        back = filled(np.zeros_like(NUMBERS), device)
        wait_for_gpu(there)
        request = world.comm.Isend(there, world.rank)
        world.comm.Recv(back, world.rank)
        world.mpi.Request.Waitall([request])
        if arrived_whole(back, NUMBERS):
            return ""
        return "a megabyte of GPU memory that was sent through MPI came back as another"
    except Exception as error:      # of mpi4py, of the MPI library or of CUDA
        return f"MPI cannot send GPU memory ({str(error).partition(chr(10))[0] or type(error).__name__})"


def to_others(world, device, straight: bool) -> str:
    """Take part in a broadcast and in a sum of a megabyte; return what went wrong."""
    down = NUMBERS.copy() if world.rank == 0 else np.zeros_like(NUMBERS)
    down = filled(down, device) if straight else down
    world.broadcast(down)
    right = arrived_whole(down, NUMBERS)
    up = filled(NUMBERS, device) if straight else NUMBERS.copy()
    total = world.reduce(up)
    verdict = np.array([world.rank > 0 or arrived_whole(total, NUMBERS * world.size)], np.int64)
    summed = bool(world.broadcast(verdict)[0])
    return "" if right and summed else "a megabyte that went between the ranks' GPUs through MPI arrived as another"


def filled(numbers: np.ndarray, device):
    import torch
    return torch.from_numpy(numbers.copy()).to(device)


def arrived_whole(found, numbers: np.ndarray) -> bool:
    return np.array_equal(found if isinstance(found, np.ndarray) else found.cpu().numpy(), numbers)
