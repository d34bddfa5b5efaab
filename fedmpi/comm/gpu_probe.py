"""Whether MPI really takes this GPU's memory between these ranks.

A library that says so may still fail: it was built for another CUDA, or the scheduler keeps it from a neighbour's GPU.
So a megabyte is sent before a run believes it."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmpi.comm.gpu_staging import wait_for_gpu
from fedmpi.comm.mpi_world import World
from fedmpi.comm.transport import Transport
from fedmpi.errors import BadInput, FedmpiError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# A megabyte of int64.
PROBE_NUMBERS = np.arange(1 << 17)


def probe_gpu_memory(asked: str, world: Transport, device: torch.device, wanted: bool) -> tuple[bool, str]:
    """Return whether this rank hands its GPU's memory to MPI, and why not if it wanted to. Every rank calls it.

    Args:
        asked: the setting comm.cuda_aware.
        wanted: this rank wants to (see gpu_staging.wants_gpu_direct).

    Raises:
        BadInput: if `comm.cuda_aware: on` asks for what does not work."""
    if not isinstance(world, World) or asked == "off" or asked == "auto" and not any_rank_is_cuda_aware(world):
        return False, ""
    why = send_to_itself(world, device) if wanted else ""
    why = exchange_with_others(world, device, wanted and not why) or why
    if wanted and why and asked == "on":
        raise BadInput(f"comm.cuda_aware = on, but {why}; set it to auto or off")
    return wanted and not why, why if wanted else ""


def any_rank_is_cuda_aware(world: Transport) -> bool:
    """Return whether MPI takes GPU memory on some rank. Every rank calls it.

    Ranks may differ: on a node without a GPU a library that was built for CUDA says that it does not. All of them have
    to take part in the probe, or none."""
    every = world.gather(np.array([bool(world.cuda_aware)], np.int64), np.ones(world.size, np.int64))
    found = np.zeros(1, np.int64) if every is None else every.max(keepdims=True)
    return bool(world.broadcast(found)[0])


def send_to_itself(world: World, device: torch.device) -> str:
    """Send a megabyte of this rank's GPU to itself; return what went wrong, "" if nothing did.

    It needs no other rank, which would wait for ever if it fails."""
    try:
        there = make_numbers(PROBE_NUMBERS, device)
        back = make_numbers(np.zeros_like(PROBE_NUMBERS), device)
        wait_for_gpu(there)
        request = world.comm.Isend(there, world.rank)
        world.comm.Recv(back, world.rank)
        world.mpi.Request.Waitall([request])
        if has_arrived_whole(back, PROBE_NUMBERS):
            return ""
        return "a megabyte of GPU memory that was sent through MPI came back as another"
    # mpi4py, the MPI library and CUDA raise errors of many kinds.
    except Exception as error:
        return f"MPI cannot send GPU memory ({describe_first_line(error)})"


def describe_first_line(error: Exception) -> str:
    """Return the first line of an error, or its class if it says nothing."""
    return str(error).partition("\n")[0] or type(error).__name__


def exchange_with_others(world: World, device: torch.device, gpu_direct: bool) -> str:
    """Take part in a broadcast and in a sum of a megabyte; return what went wrong, "" if nothing did.

    Args:
        gpu_direct: this rank does so from its GPU's memory.

    Raises:
        FedmpiError: if MPI fails from GPU memory. Other ranks then wait for this one, so the run cannot go on."""
    try:
        return exchange_megabytes(world, device, gpu_direct)
    except FedmpiError:
        raise
    # as in `send_to_itself`
    except Exception as error:
        if not gpu_direct:
            raise
        raise FedmpiError(f"MPI cannot send GPU memory between these ranks ({describe_first_line(error)}); set "
                          "comm.cuda_aware=off") from error


def exchange_megabytes(world: World, device: torch.device, gpu_direct: bool) -> str:
    """Take part in a broadcast and in a sum, and return whether they arrived; see `exchange_with_others`."""
    down = PROBE_NUMBERS.copy() if world.rank == 0 else np.zeros_like(PROBE_NUMBERS)
    down = world.broadcast(make_numbers(down, device) if gpu_direct else down)
    right = has_arrived_whole(down, PROBE_NUMBERS)
    total = world.reduce(make_numbers(PROBE_NUMBERS, device) if gpu_direct else PROBE_NUMBERS.copy())
    verdict = np.array([world.rank > 0 or has_arrived_whole(total, PROBE_NUMBERS * world.size)], np.int64)
    summed = bool(world.broadcast(verdict)[0])
    return "" if right and summed else "a megabyte that went between the ranks' GPUs through MPI arrived as another"


def make_numbers(numbers: np.ndarray, device: torch.device) -> Tensor:
    """Return numbers in new memory of a device."""
    import torch
    return torch.from_numpy(numbers.copy()).to(device)


def has_arrived_whole(found: np.ndarray | Tensor, numbers: np.ndarray) -> bool:
    """Return whether numbers arrived as they were sent."""
    return np.array_equal(found if isinstance(found, np.ndarray) else found.cpu().numpy(), numbers)
