"""Time work by medians and spreads of repeats; short work by the GPU's own clock."""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

# Calls before the first that counts; fewer if they take longer than WARM_S.
WARM = 3
WARM_S = 1.


class Spent(NamedTuple):
    """The median of repeats in seconds, and their interquartile range as a share of it."""
    seconds: float
    spread: float

    @property
    def ms(self) -> float:
        return 1e3 * self.seconds


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(work: Callable[[], object], device: str, repeats: int = 7, most_s: float = 3.,
            warm_s: float = WARM_S) -> Spent:
    """Time work() on the wall clock until the device is done.

    Args:
        most_s: after these seconds no repeat is begun, if there were 3
        warm_s: after these seconds no call to warm up is begun"""
    begin = time.perf_counter()
    for _ in range(WARM):
        if time.perf_counter() - begin < warm_s:
            work()
            wait(device)
    spent, begin = [], time.perf_counter()
    while len(spent) < repeats and (len(spent) < min(3, repeats) or time.perf_counter() - begin < most_s):
        start = time.perf_counter()
        work()
        wait(device)
        spent.append(time.perf_counter() - start)
    return summarise(spent)


def measure_kernel(work: Callable[[], object], device: str, repeats: int = 20) -> Spent:
    """Time work() by events on the GPU, without the host's share; on a CPU by the wall clock."""
    if device == "cpu":
        return measure(work, device, min(repeats, 3), warm_s=.01)
    for _ in range(WARM):
        work()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in pairs:
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return summarise([start.elapsed_time(end) / 1e3 for start, end in pairs])


def summarise(spent: list[float]) -> Spent:
    low, median, high = np.quantile(spent, [.25, .5, .75])
    return Spent(float(median), float((high - low) / median) if median else 0.)


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return |found - exact| / |exact|, in float64."""
    found, exact = found.detach().double().cpu(), exact.detach().double().cpu()
    return float((found - exact).norm() / exact.norm().clamp_min(1e-300))
