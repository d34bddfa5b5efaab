"""The C library's heap keeps what a training step frees: the next step asks for the same again.

glibc gives freed memory back to the system in every step of a network of some MB, and the system clears each page as it
is touched again: up to 2,000 page faults, a quarter of a step's time."""
from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3      # of glibc's malloc.h
KEPT_BYTES = 512 << 20      # bytes that are kept at most, of those free at the heap's end
LARGE_BYTES = 32 << 20      # bytes of a single piece that is not kept: it goes back as a whole; older ones take no more


def keep() -> bool:
    """Set it for this process; say whether there was something to set: other C libraries have ways of their own."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):      # not glibc
        return False
    return all([mallopt(MMAP_THRESHOLD, LARGE_BYTES), mallopt(TRIM_THRESHOLD, KEPT_BYTES)])
