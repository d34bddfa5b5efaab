"""How much memory this rank has used: `fedmpi status` and metrics.jsonl show it."""
from __future__ import annotations

import resource
import sys

import numpy as np
import torch

from fedmpi.text import MIB

# Linux counts in KiB, macOS in bytes.
BYTES_OF_A_UNIT = 1 if sys.platform == "darwin" else 1024


def measure_peak_memory(device: torch.device) -> np.ndarray:
    """Return the MiB that this process held at most so far, on its host and on its GPU, (2,).

    On the host these are the resident pages, which include the code of the libraries. On a GPU it is what PyTorch has
    reserved; the GPU's context and the libraries there take some hundred MiB more."""
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * BYTES_OF_A_UNIT / MIB
    gpu = torch.cuda.max_memory_reserved(device) / MIB if device.type == "cuda" else 0.
    return np.array([host, gpu])
