"""Wait for a GPU, which works behind the back of the program that gave it work. On a CPU nothing waits."""
from __future__ import annotations

import torch


def wait_for_stream(device: torch.device) -> None:
    """Wait until a GPU has done what this thread's current stream was given, as it must have before the memory of a
    recorded graph is given back."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def wait_for_device(device: torch.device) -> None:
    """Wait until a GPU has done all that it was given, on all streams, as before a clock is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
