"""CUDA graphs: a step of the cohort that is the same many times over is recorded once and then replayed, which spares
the GPU the wait for Python. A recorded step must read and write the same memory every time: see Cohort.replay.

A replayed step runs the kernels of a called one, so that bits do not depend on `mode`. On a CPU steps are called."""
from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import contextmanager

import torch

WARM = 2        # steps taken before one is recorded: they load the kernels and workspaces that it needs
OFTEN = 16      # with fewer steps, recording (perhaps ten steps' time) would gain nothing


class Graphs:
    """Says whether steps are recorded (`mode`: auto, on, off; auto: on a GPU), and repeats them."""

    def __init__(self, mode: str = "off"):
        self.mode = mode

    def wanted(self, device: torch.device) -> bool:
        return self.mode == "on" or self.mode == "auto" and device.type == "cuda"

    def repeat(self, step: Callable[[], None], times: int, device: torch.device) -> None:
        """Take a step so many times, replayed where that is worth while."""
        if not self.wanted(device) or times < (OFTEN if self.mode == "auto" else WARM + 1):
            for _ in range(times):
                step()
            return
        with beside(device) as stream:
            for _ in range(WARM):
                step()
        again = self._recorded(step, stream)
        for _ in range(times - WARM):
            again()
        if stream:
            torch.cuda.current_stream(device).synchronize()      # before the graph's memory is given back

    def _recorded(self, step, stream) -> Callable[[], None]:
        try:
            return record(step, stream)
        except torch.OutOfMemoryError:      # the engine's business: fewer clients at once
            raise
        except RuntimeError as error:
            self.mode = "off"
            logging.getLogger(__name__).warning("fedmpi: goes on without CUDA graphs, for a step cannot be recorded: "
                                                "%s", str(error).partition("\n")[0])
            return step


@contextmanager
def beside(device: torch.device):
    """Work on a stream beside the GPU's current one, as recording must; None on a CPU."""
    if device.type != "cuda":
        yield None
        return
    with torch.cuda.device(device):
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            yield side
        main.wait_stream(side)


def record(step, stream) -> Callable[[], None]:
    """Record a step without taking it; return what replays it. Raises RuntimeError where it cannot be recorded."""
    if stream is None:
        return step
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(stream.device), torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay
