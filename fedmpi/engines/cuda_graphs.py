"""CUDA graphs: a step of the cohort is recorded once and then replayed, so that the GPU does not wait for Python.

A recorded step must read and write the same memory every time, see Cohort.replay. Replay launches the same kernels, so
results are bit-identical whatever `mode` is. On a CPU the step is simply called."""
from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from fedmpi.engines.gpu_errors import is_out_of_memory
from fedmpi.engines.gpu_waiting import wait_for_stream
from fedmpi.torch_compat import end_failed_capture

if TYPE_CHECKING:
    from collections.abc import Iterator

# Steps that are taken before one is recorded: they load the kernels and workspaces that it needs.
WARMUP_CALLS = 2
# Recording takes 1.2 times as long as calling a step, and a replay .2 to .55 times (an H200, networks from mlp to cnn4,
# 1 to 128 clients: jobs/results/h200). So recording pays from the fifth step on; for eight it saves a fifth or more.
MIN_STEPS_TO_RECORD = 8


class StepRecorder:
    """Repeats steps, recorded or called.

    Args:
        mode: `on`, `off`, or `auto`, which records on a GPU if there are enough steps."""

    def __init__(self, mode: str = "off"):
        self.mode = mode
        # gradients that a method's last own step asked for, see recorded_gradients
        self.gradients_per_step = 1
        self.stream: torch.cuda.Stream | None = None

    def wanted(self, device: torch.device) -> bool:
        """Say whether `mode` asks for recording on this device.

        On a CPU, and if the steps are too few, `repeat` calls them nevertheless."""
        return self.mode == "on" or self.mode == "auto" and device.type == "cuda"

    def pays(self, times: int, device: torch.device) -> bool:
        """Say whether what is repeated so many times is to be recorded."""
        least = MIN_STEPS_TO_RECORD if self.mode == "auto" else WARMUP_CALLS + 1
        return self.wanted(device) and times >= least

    def repeat(self, step: Callable[[], None], times: int, device: torch.device, check: Callable[[], None]) -> None:
        """Take a step `times` times, and record it if that pays.

        Args:
            step: takes one step; it reads and writes the same memory every time.
            check: is called before each step but the first ones of a recording; it raises if training is to end."""
        if not self.pays(times, device):
            for _ in range(times):
                check()
                step()
            return
        with work_on_stream(device, self._stream(device)):
            for _ in range(WARMUP_CALLS - 1):
                step()
        self.look(step, device)
        again = self.record(step, device)
        try:
            for _ in range(times - WARMUP_CALLS):
                check()
                again()
        finally:
            wait_for_stream(device)

    def _stream(self, device: torch.device) -> torch.cuda.Stream | None:
        """Return the stream on which steps are recorded; None on a CPU.

        All graphs of an engine share it, since none outlives `repeat`, and cuBLAS keeps a workspace of 32 MiB for every
        stream that it ever worked on."""
        if device.type == "cuda" and self.stream is None:
            with torch.cuda.device(device):
                self.stream = torch.cuda.Stream()
        return self.stream

    def look(self, step: Callable[[], None], device: torch.device) -> None:
        """Take the last step before a recording, and give recording up if the host waits for the GPU in it.

        A recording of such a step would fail, and a failed one leaves PyTorch before 2.12 in disorder. A step that
        waits does so while it computes gradients, before it moves anything, so it can be taken again."""
        with work_on_stream(device, self._stream(device)) as stream:
            if stream is None:
                return step()
            before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("error")
            try:
                return step()
            except RuntimeError as error:
                if "synchronizing" not in str(error):
                    raise
                self.give_up(str(error))
            finally:
                torch.cuda.set_sync_debug_mode(before)
            return step()

    def record(self, step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        """Record a step without taking it, and return what takes it: the step itself if it cannot be recorded.

        Its user calls `wait_for_stream` before it drops what this returns."""
        if self.mode == "off":
            return step
        try:
            return record_step(step, self._stream(device))
        except RuntimeError as error:
            # The engine then tries fewer clients at once.
            if is_out_of_memory(error):
                raise
            self.give_up(str(error))
            return step

    def give_up(self, why: str) -> None:
        """Record nothing from now on, and say why, by the first line of an error."""
        self.mode = "off"
        logging.getLogger(__name__).warning("fedmpi: goes on without CUDA graphs, for a step cannot be recorded: %s",
                                            why.partition("\n")[0])


@contextmanager
def work_on_stream(device: torch.device, side: torch.cuda.Stream | None) -> Iterator[torch.cuda.Stream | None]:
    """Work on another stream than the GPU's current one, as recording must. Without a stream (on a CPU) do nothing."""
    if side is None:
        yield None
        return
    with torch.cuda.device(device):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        try:
            with torch.cuda.stream(side):
                yield side
        finally:
            # If a step fails, kernels may still write memory that is given back.
            main.wait_stream(side)


def record_step(step: Callable[[], None], stream: torch.cuda.Stream | None) -> Callable[[], None]:
    """Record a step without taking it, and return what replays it: the step itself if there is no stream (on a CPU).

    Raises the RuntimeError of a step that cannot be recorded, not the one that CUDA then raises at the end of the
    capture. Other threads may call CUDA meanwhile (`thread_local`), as MPI libraries do for their messages."""
    if stream is None:
        return step
    graph, pool, first = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), []
    before = torch.cuda.current_stream(stream.device)
    try:
        with torch.cuda.device(stream.device), torch.cuda.graph(graph, pool, stream, "thread_local"):
            try:
                step()
            except RuntimeError as error:
                first.append(error)
                raise
    except RuntimeError as error:
        end_failed_capture(stream, pool)
        # PyTorch leaves the stream of a capture that fails the current one
        torch.cuda.set_stream(before)
        raise first[0] if first else error      # noqa: B904 (it was raised before this one)
    finally:
        # an error holds this frame, and with it the tensors of the step, for as long as the frame holds the error
        first.clear()
    return graph.replay
