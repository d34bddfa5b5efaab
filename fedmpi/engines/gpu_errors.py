"""Tell what a RuntimeError of PyTorch on a GPU means: too little memory, which fewer clients at once may cure, or a GPU
that this process cannot use any more."""
from __future__ import annotations

import gc
import logging

import torch

OUT_OF_MEMORY_WORDS = (
    "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "cudaErrorMemoryAllocation",
    "nable to find an engine to execute", "CUBLAS_STATUS_NOT_INITIALIZED")
BROKEN_GPU_WORDS = ("CUDA error", "cuDNN error", "CUBLAS_STATUS_EXECUTION_FAILED", "device-side assert")


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether memory was too small. Libraries use their own words: cuBLAS cannot make its handle or workspace, and
    cuDNN finds no algorithm whose workspace fits."""
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in OUT_OF_MEMORY_WORDS)


def make_room_for_fewer(now: str, fewer: int, why: str) -> None:
    """Give memory back after it was too small, and say that fewer clients or models are tried at once. Call it when the
    error is gone, whose frames hold the memory.

    Args:
        now: what did not fit, such as "for 4 clients".
        fewer: how many of them are tried next.
        why: the first line of the error."""
    give_memory_back()
    logging.getLogger(__name__).warning("fedmpi: memory is short %s at once, %d are tried; last bits may differ (%s)",
                                        now, fewer, why)


def give_memory_back() -> None:
    """Give back what a failed computation held on the GPU. Call it when the error is gone."""
    # errors and their frames may hold each other
    gc.collect()
    torch.cuda.empty_cache()


def is_gpu_broken(error: BaseException) -> bool:
    """Say whether the GPU itself failed, so that every later call of this process would fail, too."""
    return not is_out_of_memory(error) and (isinstance(error, getattr(torch, "AcceleratorError", ()))
                                            or any(word in str(error) for word in BROKEN_GPU_WORDS))
