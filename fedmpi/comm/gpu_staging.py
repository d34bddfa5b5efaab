"""How numbers on a GPU reach MPI: straight from the GPU's memory if the library takes that (CUDA-aware), or else by way
of pinned memory of the host, to which a GPU copies fastest. On a CPU, MPI takes NumPy arrays as they are.

Ranks may differ in this, since the bytes are the same. Runs of several ranks on one GPU went by way of pinned memory;
the straight way has not been measured yet."""
from __future__ import annotations

import ctypes
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedmpi.comm.transport import Transport


def is_cuda_aware(mpi: ModuleType) -> bool | None:
    """Return whether the MPI library takes GPU memory now; None if it does not tell.

    MPICH and Open MPI answer to the same function, which mpi4py does not pass on; but mpi4py's library links to
    theirs."""
    try:
        return bool(ctypes.CDLL(mpi.__file__).MPIX_Query_cuda_support())
    except (AttributeError, OSError):
        return None


def refuse_cuda_aware(asked: str, world: Transport) -> None:
    """Refuse `comm.cuda_aware: on` at rank 0 if the library says on every rank that it takes no GPU memory.

    Raises:
        BadInput: with the library and a remedy."""
    if asked == "on" and world.size > 1 and all(aware is False for aware in world.cuda_aware_by_rank):
        raise BadInput(f"comm.cuda_aware = on, but the MPI library takes no GPU memory ({world.library} says so); set "
                       "it to auto, or use a library that was built for CUDA and has it enabled")


def wants_gpu_direct(asked: str, world: Transport, device: torch.device) -> bool:
    """Return whether this rank is to hand its GPU's memory to MPI.

    Args:
        asked: the setting comm.cuda_aware."""
    aware = bool(world.cuda_aware) if asked == "auto" else asked == "on"
    return aware and world.size > 1 and device.type == "cuda"


def stage_for_mpi(total: Tensor, gpu_direct: bool) -> np.ndarray | Tensor:
    """Return a sum in the form in which MPI takes it: itself, or an array on the host."""
    if gpu_direct:
        return total
    if total.is_cuda:
        total = total.new_empty(total.shape, device="cpu", pin_memory=True).copy_(total)
    return total.numpy()


def allocate_bytes(size: int, device: torch.device, gpu_direct: bool) -> np.ndarray | Tensor:
    """Return memory in which MPI can put so many bytes of a broadcast."""
    if not gpu_direct and device.type == "cpu":
        return np.empty(size, np.uint8)
    import torch
    if gpu_direct:
        return torch.empty(size, dtype=torch.uint8, device=device)
    return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()


def copy_to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Return an array on a device, to which it travels while the host goes on."""
    import torch
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def wait_for_gpu(buffer: np.ndarray | Tensor) -> None:
    """Wait until a GPU is done with memory that MPI reads or overwrites next, since MPI knows no streams."""
    if not isinstance(buffer, np.ndarray) and buffer.is_cuda:
        import torch
        torch.cuda.current_stream(buffer.device).synchronize()
