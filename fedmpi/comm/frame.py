"""Arrays in one byte buffer and back, without pickle: an order's payload, or a client that moves to another rank.

A frame is a list of int64 words (how many there are; the number of arrays; type, dimensions and shape of each array),
then the arrays' bytes, each padded to a multiple of 8."""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

# The index of a type in this list travels between ranks.
DTYPES = [np.dtype(name) for name in (
    "uint8", "int32", "int64", "float32", "float64", "bool", "float16", "int8", "int16")]


def pack_frame(values: Iterable[np.ndarray | np.generic]) -> np.ndarray:
    """Pack arrays and scalars into one buffer, (bytes,) uint8."""
    arrays = [np.asarray(value) for value in values]
    words = [len(arrays)]
    for a in arrays:
        words += [DTYPES.index(a.dtype), a.ndim, *a.shape]
    head = np.array([len(words) + 1, *words], np.int64)
    sizes = [round_up_to_8(a.nbytes) for a in arrays]
    buffer = np.empty(head.nbytes + sum(sizes), np.uint8)
    buffer[:head.nbytes] = head.view(np.uint8)
    at = head.nbytes
    for a, size in zip(arrays, sizes, strict=True):
        buffer[at:at + a.nbytes] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
        at += size
    return buffer


def unpack_frame(buffer: np.ndarray | Tensor, first_tensor: int | None = None) -> list[np.ndarray | Tensor]:
    """Return the arrays of a frame as views of its buffer.

    Args:
        buffer: the frame, an array or a tensor of bytes.
        first_tensor: if the buffer is a tensor, the arrays from this index on are returned as tensors where it lies;
            the arrays before are copied to the host. Default: all are copied."""
    words = copy_to_host(buffer[:8 * int(copy_to_host(buffer[:8]).view(np.int64)[0])]).view(np.int64)
    at, cursor, arrays = words.nbytes, 2, []
    for i in range(int(words[1])):
        dtype, ndim = DTYPES[int(words[cursor])], int(words[cursor + 1])
        shape = tuple(int(s) for s in words[cursor + 2:cursor + 2 + ndim])
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        part = buffer[at:at + nbytes]
        if not isinstance(part, np.ndarray) and first_tensor is not None and i >= first_tensor:
            import torch
            part = part.view(getattr(torch, dtype.name))
        else:
            part = copy_to_host(part).view(dtype)
        arrays.append(part.reshape(shape))
        at, cursor = at + round_up_to_8(nbytes), cursor + 2 + ndim
    return arrays


def copy_to_host(part: np.ndarray | Tensor) -> np.ndarray:
    """Return bytes of a frame as an array."""
    return part if isinstance(part, np.ndarray) else part.cpu().numpy()


def round_up_to_8(nbytes: int) -> int:
    """Return a number of bytes rounded up to a multiple of 8."""
    return (nbytes + 7) // 8 * 8
