"""What a RuntimeError of PyTorch on a GPU means: memory that is short, which fewer clients at once may cure, or a GPU
that this process cannot use any more."""
from __future__ import annotations

import torch

SHORT = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "cudaErrorMemoryAllocation",
         "nable to find an engine to execute", "CUBLAS_STATUS_NOT_INITIALIZED")
BROKEN = ("CUDA error", "cuDNN error", "CUBLAS_STATUS_EXECUTION_FAILED", "device-side assert")


def short_of_memory(error: BaseException) -> bool:
    """Say whether memory was too little. Libraries say so in words of their own: cuBLAS cannot make its handle or
    workspace, cuDNN finds no algorithm whose workspace there is room for."""
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in SHORT)


def broken(error: BaseException) -> bool:
    """Say whether the GPU itself failed: every later call of this process would fail too, in other words."""
    return not short_of_memory(error) and (isinstance(error, getattr(torch, "AcceleratorError", ()))
                                           or any(word in str(error) for word in BROKEN))
