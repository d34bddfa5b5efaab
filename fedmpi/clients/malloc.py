"""Settings of malloc: memory that a training step frees is kept for the next step, which asks for the same again.

Without them glibc gives freed memory back to the system in every step of a network of some MB, and the system clears
each page when it is touched again. These are up to 2,000 page faults, or a quarter of the step's time."""
from __future__ import annotations

import ctypes

# numbers of the parameters in glibc's malloc.h
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
# free memory at the end of the heap goes back to the system if it is more than this
KEPT_BYTES = 512 << 20
# a single piece of this size or more always goes back; older versions of glibc take no larger value
LARGE_BYTES = 32 << 20


def keep_freed_memory() -> bool:
    """Keep freed memory in this process. Return whether that could be set: only glibc has these parameters."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    # not glibc
    except (AttributeError, OSError, TypeError):
        return False
    return all([mallopt(MMAP_THRESHOLD, LARGE_BYTES), mallopt(TRIM_THRESHOLD, KEPT_BYTES)])
