"""The mode that every operation passes: whether it is allowed, where its result is, and what it costs."""
from __future__ import annotations

import threading

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.pretend import kernels
from tests.pretend.marks import CARD, CPU, EITHER, HOST, PINNED, lies

# `asked`: the code called a factory of PyTorch by name; `free`: operations are not checked.
local = threading.local()


class Kernels(TorchDispatchMode):
    """Performs operations on the CPU as a GPU would perform them."""

    def __init__(self, books):
        super().__init__()
        self.books = books

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs) if kwargs else {}
        if getattr(local, "free", False):
            return function(*args, **kwargs)
        kind = kernels.kind(function)
        tensors = kernels.flat([*args, *kwargs.values()])
        where = self._where(function, kind, args, kwargs, tensors)
        if where == CARD:
            self._cost(function, kind, args, kwargs)
        out = function(*args, **kwargs)
        if where != HOST and not kind.copies and not kind.written:
            results = kernels.flat([out])
            for t in results:
                memory = t.untyped_storage()
                if getattr(memory, "lies", HOST) == HOST:
                    memory.lies = where
        if where == CARD and self.books.capture is not None:
            self.books.capture.take(function, args, kwargs, out, kernels.flat([out]))
        return out

    def _where(self, function, kind, args, kwargs, tensors) -> str:
        """Return the place of the result. Raises RuntimeError if devices are mixed."""
        device = kwargs.get("device")
        places = [getattr(t.untyped_storage(), "lies", HOST) for t in tensors]
        if device is not None:
            kwargs["device"] = CPU
            if device.type == "cuda":
                self.books.needed(kind.name)
                for place in places:
                    moved(self.books, place, CARD, kwargs.get("non_blocking", False))
                return CARD
            if not tensors and not getattr(local, "asked", False):
                return EITHER
        if kind.copies:
            return self._copied(kind.name, args, kwargs)
        if CARD not in places:
            return EITHER if tensors and all(p == EITHER for p in places) else HOST
        if HOST in places or PINNED in places:
            self._refuse_mixed(function, kind, args, tensors, places)
        return CARD

    def _refuse_mixed(self, function, kind, args, tensors, places) -> None:
        others = [t for t, place in zip(tensors, places, strict=True) if place not in (CARD, EITHER)]
        if kind.indexed and lies(args[0]) == CARD:
            self.books.note("sync", "an index of the host")
            return
        target = args[0] if kind.written == (0,) and isinstance(args[0], torch.Tensor) else None
        mixed = [t for t in others if t.ndim or kind.name in kernels.ALONE or t is target]
        if mixed:
            raise RuntimeError(f"Expected all tensors to be on the same device, but {function} was given "
                               f"{[tuple(t.shape) for t in mixed]} on cpu beside tensors on cuda:0 (pretended)")

    def _copied(self, name, args, kwargs) -> str:
        pairs = zip(*args[:2], strict=True) if name == "_foreach_copy_" else [args[:2]]
        later, onto = kwargs.get("non_blocking", args[2] if len(args) > 2 else False), HOST
        for to, source in pairs:
            onto = lies(to) if onto == HOST else onto
            moved(self.books, lies(source), lies(to), later)
        return onto if onto == CARD else HOST

    def _cost(self, function, kind, args, kwargs) -> None:
        if kind.suspect:
            if waited := kernels.waits(kind, args, kwargs):
                self.books.note("sync", waited)
            if kernels.atomic(kind, args):
                self.books.note("atomic", kind.name)
        if not kind.looks:
            self.books.launch()
        if kind.written and self.books.capture is not None:
            self.books.capture.save(function, args)


def moved(books, source: str, to: str, later: bool) -> None:
    """Count what a copy between two places costs the host."""
    if CARD not in (source, to) or source == to or EITHER in (source, to):
        return
    what = "a copy to the GPU" if to == CARD else "a copy to the host"
    books.needed(what)
    books.copies += 1
    if not later:
        books.note("sync", what)
    elif HOST in (source, to):
        books.note("unpinned", what)
        books.note("sync", what)
    elif books.capture is not None and to != CARD:
        books.note("sync", what)


class unseen:      # noqa: N801 (used like a function)
    """Performs operations without checks within the context."""

    def __enter__(self):
        self.before, local.free = getattr(local, "free", False), True

    def __exit__(self, *_):
        local.free = self.before
