"""Gradients that a method's own steps ask for (`data.scan`), recorded as CUDA graphs.

The steps themselves are called, since they may do anything. But a network's gradient depends on nothing but the weights
and the batch, and most launches of a step are its. Legend: c clients, k of them active, d parameters, b batch."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

import torch
from torch import Tensor
from torch.func import vmap

from fedmpi.engines.cuda_graphs import WARMUP_CALLS, StepRecorder
from fedmpi.engines.gpu_waiting import wait_for_stream
from fedmpi.engines.gradients import compute_gradient
from fedmpi.engines.outside_vmap import OutsideVmap, is_shared
from fedmpi.models.flat import Net
from fedmpi.torch_compat import count_transforms


class RecordedGradients:
    """The gradients of one `scan` of c clients; a context, at whose end the device is idle and the graphs are gone.

    They are recorded for each number of active clients with which enough of them are expected: as many in each step as
    the last step of this engine asked for.

    Args:
        graphs: the engine's, which says whether gradients are to be recorded.
        steps: the clients' numbers of steps, (c,), most first.
        smoothing: of the labels, see losses.compute_loss."""

    def __init__(self, graphs: StepRecorder, steps: Sequence[int], device: torch.device, smoothing: float):
        self.graphs, self.steps, self.device, self.smoothing = graphs, steps, device, smoothing
        self.active, self.level, self.calls, self.wanted = 0, 0, 0, False
        self.recorded: dict[Net, RecordedFunction] = {}

    def begin_step(self, k: int) -> None:
        """Begin a step of the first k clients, from inside the vmap over them."""
        self._end_step()
        self.level = count_transforms()
        if k == self.active:
            return
        self._forget()
        self.active = k
        expected = self.graphs.gradients_per_step * (self.steps[k - 1] - (self.steps[k:] or [0])[0])
        self.wanted = self.graphs.pays(expected, self.device)

    def compute(self, x: Tensor, y: Tensor, weight: Tensor, net: Net, w: Tensor) -> Tensor:
        """Return compute_gradient (d,) of one client, inside vmap."""
        self.calls += 1

        def function(x: Tensor, y: Tensor, weight: Tensor, w: Tensor) -> Tensor:
            return compute_gradient(x, y, weight, self.smoothing, net, w)
        # A method may ask in a vmap of its own, or differentiate the gradient.
        if not self.wanted or count_transforms() != self.level:
            return function(x, y, weight, w)

        def whole(x: Tensor, y: Tensor, weight: Tensor, w: Tensor) -> Tensor:
            if is_shared(w):
                return vmap(function, (0, 0, 0, None))(x, y, weight, w[0])
            if net not in self.recorded:
                self.recorded[net] = RecordedFunction(self.graphs, vmap(function))
            return self.recorded[net](x, y, weight, w)
        return OutsideVmap.apply(whole, x, y, weight, w)

    def __enter__(self) -> RecordedGradients:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._end_step()
        self._forget()

    def _end_step(self) -> None:
        if self.calls:
            self.graphs.gradients_per_step, self.calls = self.calls, 0

    def _forget(self) -> None:
        if self.recorded:
            wait_for_stream(self.device)
            self.recorded.clear()


class RecordedFunction:
    """A function of tensors, all on one device and always of the same shapes. It is called at first, and then
    replayed on copies of its arguments."""

    def __init__(self, graphs: StepRecorder, function: Callable[..., Tensor]):
        self.graphs, self.function = graphs, function
        # memory of the graph's: the arguments and the result
        self.given: list[Tensor] = []
        self.found = torch.empty(0)
        self.called, self.again = 0, self.step

    def __call__(self, *given: Tensor) -> Tensor:
        """Return function(*given)."""
        self.called += 1
        device = given[0].device
        if self.called == 1:
            self.given = [t.clone(memory_format=torch.contiguous_format) for t in given]
            self.found = self.function(*given)
            return self.found.clone()
        for kept, t in zip(self.given, given, strict=True):
            kept.copy_(t)
        if self.called == WARMUP_CALLS:
            self.graphs.look(self.step, device)
        else:
            if self.called == WARMUP_CALLS + 1:
                self.again = self.graphs.record(self.step, device)
            self.again()
        return self.found.clone()

    def step(self) -> None:
        """Compute the result from the arguments, in the memory of both."""
        self.found.copy_(self.function(*self.given))
