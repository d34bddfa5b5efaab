"""CUDA graphs: a capture records operations and undoes them, a replay performs only the recorded operations.

If `graph.step` is set, a replay is also compared with the step itself: called again, it must perform the same
operations with the same numbers, on memory of the same shapes and strides, and on the same memory unless the step
itself made that."""
from __future__ import annotations

import torch

from tests.pretend import kernels
from tests.pretend.marks import lies, storage
from tests.pretend.modes import unseen


class Recording:
    """The operations of one capture, in order, and the numbers that undo them."""

    def __init__(self):
        self.calls, self.spoilt = [], ""
        # storage -> its index among those made within
        self.made = {}
        # (tensor in outer memory, its numbers before it was written)
        self.before = []
        # Keep tensors, so that their storages are not reused by others.
        self.kept = []

    def take(self, function, args, kwargs, out, results) -> None:
        self.calls.append((function, args, kwargs, out, signature(function, args, kwargs, self.made)))
        given = {storage(t)._cdata for t in kernels.flat([*args, *kwargs.values()])}
        for t in results:
            # A view of outer memory is outer memory.
            if storage(t)._cdata not in given:
                self.made.setdefault(storage(t)._cdata, len(self.made))
            self.kept.append(t)

    def save(self, function, args) -> None:
        """Keep the numbers of outer memory that an operation is about to write."""
        for i in kernels.kind(function).written:
            for t in kernels.flat([args[i]]):
                if storage(t)._cdata not in self.made:
                    with unseen():
                        self.before.append((t.detach(), t.detach().clone()))

    def undo(self) -> None:
        with unseen(), torch.no_grad():
            for t, numbers in reversed(self.before):
                t.copy_(numbers)
        self.before.clear()


def signature(function, args, kwargs, made) -> tuple:
    """Return the part of an operation that must be the same in every replay."""
    def one(value):
        if isinstance(value, torch.Tensor):
            # A number of the host becomes part of the graph.
            if lies(value) != "card" and not value.ndim:
                with unseen():
                    return "number", value.detach().item()
            memory = storage(value)._cdata
            return ("made", made[memory]) + layout(value) if memory in made else ("outer", memory) + layout(value)
        return [one(v) for v in value] if isinstance(value, (list, tuple)) else repr(value)
    return str(function), one(args), sorted((k, one(v)) for k, v in kwargs.items())


def layout(tensor) -> tuple:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


def make_graph(books):
    class CUDAGraph:
        """Stands for torch.cuda.CUDAGraph."""

        def __init__(self, *_, **__):
            self.recording, self.step, self.replays, self.stream = None, None, 0, None

        def replay(self) -> None:
            assert self.recording is not None, "a graph that was not captured is replayed"
            self.replays += 1
            if self.step is not None:
                compare(books, self)
            books.launches += 1
            with unseen(), torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
                for function, args, kwargs, out, _ in self.recording.calls:
                    again(function, args, kwargs, out)

        def reset(self) -> None:
            self.recording = None

        def pool(self):
            return (0, 1)
    return CUDAGraph


def again(function, args, kwargs, out) -> None:
    """Perform a recorded operation, with its result in the recorded memory."""
    if kernels.kind(function).looks:
        return
    new = function(*args, **kwargs)
    if kernels.kind(function).written:
        return
    for to, source in zip(kernels.flat([out]), kernels.flat([new]), strict=True):
        to.copy_(source)


def compare(books, graph) -> None:
    """Raise AssertionError if the step, called now, differs from the recorded one."""
    before, launches = books.capture, books.launches
    books.capture = now = Recording()
    try:
        graph.step()
    finally:
        books.capture, books.launches = before, launches
        now.undo()
    first, other = ([call[-1] for call in r.calls] for r in (graph.recording, now))
    for i, (a, b) in enumerate(zip(first, other, strict=False)):
        assert a == b, f"replay {graph.replays}, operation {i}: recorded was {a}, the step now does {b}"
    assert len(first) == len(other), f"{len(first)} operations were recorded, the step now takes {len(other)}"


def make_capture(books, cuda):
    class graph:      # noqa: N801 (the name of PyTorch's)
        """Stands for torch.cuda.graph."""

        def __init__(self, cuda_graph, pool=None, stream=None, capture_error_mode="global", **_):
            self.graph, self.stream, self.mode = cuda_graph, stream or cuda.Stream(), capture_error_mode

        def __enter__(self):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            assert books.capture is None, "a capture within a capture"
            self.before, books.stream = books.stream, self.stream
            self.graph.stream, self.graph.mode = self.stream, self.mode
            books.capture = Recording()

        def __exit__(self, kind, error, trace):
            recording, books.capture = books.capture, None
            recording.undo()
            if recording.spoilt:
                # as PyTorch does: the stream of the capture stays current
                books.shaken = books.locked = True
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            books.locked, books.stream = False, self.before
            if kind is None:
                self.graph.recording = recording
                books.graphs.append(self.graph)
    return graph
