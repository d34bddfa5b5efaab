"""How numbers on a GPU reach MPI: `straight` from the GPU's memory where the library takes that (CUDA-aware), else
staged in pinned memory of the host, to which a GPU copies fastest. On a CPU MPI takes NumPy arrays as they are.

Ranks may differ in this: the bytes are the same. Neither way has been measured on a GPU yet."""
from __future__ import annotations

import ctypes

import numpy as np

from fedmpi.errors import BadInput


def cuda_aware(mpi) -> bool | None:
    """Ask the MPI library whether it takes GPU memory now; None where it does not tell.

    MPICH and Open MPI answer to the same name, which mpi4py does not pass on; but its own library links to theirs."""
    try:
        return bool(ctypes.CDLL(mpi.__file__).MPIX_Query_cuda_support())
    except (AttributeError, OSError):
        return None


def refuse_cuda_aware(asked: str, world) -> None:
    """Refuse `comm.cuda_aware: on` where the library says no. Raises BadInput."""
    if asked == "on" and world.size > 1 and world.cuda_aware is False:
        raise BadInput(f"comm.cuda_aware = on, but the MPI library takes no GPU memory ({world.library} says so); set "
                       "it to auto, or use a library that was built for CUDA and has it enabled")


def straight(asked: str, world, device) -> bool:
    """Say whether this rank hands its GPU's memory to MPI."""
    aware = bool(world.cuda_aware) if asked == "auto" else asked == "on"
    return aware and world.size > 1 and device.type == "cuda"


def outgoing(total, straight: bool):
    """Return a sum (a tensor) in the form in which MPI takes it."""
    if straight:
        return total
    if total.is_cuda:
        total = total.new_empty(total.shape, device="cpu", pin_memory=True).copy_(total)
    return total.numpy()


def landing(size: int, device, straight: bool):
    """Return memory for so many bytes of a broadcast."""
    if not straight and device.type == "cpu":
        return np.empty(size, np.uint8)
    import torch
    if straight:
        return torch.empty(size, dtype=torch.uint8, device=device)
    return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()


def sent(array: np.ndarray, device):
    """Return an array on a device, to which it travels while the host goes on."""
    import torch
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def wait_for_gpu(buffer) -> None:
    """Wait until a GPU is done with memory that MPI reads or overwrites next: MPI knows no streams."""
    if not isinstance(buffer, np.ndarray) and buffer.is_cuda:
        import torch
        torch.cuda.current_stream(buffer.device).synchronize()
