"""Replacements for torch.cuda and for PyTorch's functions that take a device."""
from __future__ import annotations

import contextlib
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from fedmpi.engines import cuda_graphs
from tests.pretend.books import Books
from tests.pretend.capture import make_capture, make_graph
from tests.pretend.marks import CARD, CPU, EITHER, GPU, HOST, PINNED, lies, put
from tests.pretend.modes import Kernels, local, moved, unseen

Tensor = torch.Tensor
FACTORIES = ("zeros", "ones", "empty", "full", "arange", "eye", "rand", "randn", "linspace", "empty_strided")
NEW = ("new_empty", "new_zeros", "new_ones", "new_full")
DEBUG = {"default": 0, "warn": 1, "error": 2}
# Bytes of the card's memory.
TOTAL = 80 << 30


class Stream:
    """Stands for torch.cuda.Stream."""
    device, device_index = GPU, 0

    def __init__(self, *_, **__):
        Stream.books.needed("Stream")
        Stream.made.append(self)

    def wait_stream(self, other):
        self.waited = [*getattr(self, "waited", ()), other]

    def synchronize(self):
        Stream.books.note("sync", "synchronize")


def cuda_functions(books):
    """Return replacements of attributes of torch.cuda."""
    Stream.books, Stream.made = books, []
    books.stream = main = Stream()
    books.context.clear()

    def needs(name, value):
        def answer(*_, **__):
            books.needed(name)
            return value
        return answer

    def synchronize(device=None):
        books.note("sync", "synchronize")

    def empty_cache():
        if books.capture is not None:
            books.refuse("operation not permitted when stream is capturing (empty_cache)")
        if books.shaken:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    @contextlib.contextmanager
    def stream(chosen):
        before, books.stream = books.stream, chosen
        try:
            yield
        finally:
            books.stream = before
    names = SimpleNamespace(Stream=Stream)
    return {
        "_lazy_init": lambda: None, "is_available": lambda: True, "is_initialized": lambda: bool(books.context),
        "device_count": lambda: 1, "set_device": needs("set_device", None),
        "current_device": needs("current_device", 0),
        "synchronize": synchronize, "empty_cache": empty_cache, "manual_seed_all": lambda seed: None,
        "mem_get_info": needs("mem_get_info", (TOTAL // 2, TOTAL)),
        "memory_reserved": needs("memory_reserved", 1 << 20),
        "memory_allocated": needs("memory_allocated", 1 << 19), "max_memory_allocated": needs("max", 1 << 19),
        "current_stream": lambda device=None: books.stream, "default_stream": lambda device=None: main,
        "set_stream": lambda chosen: setattr(books, "stream", chosen),
        "Stream": Stream, "stream": stream, "device": lambda device: contextlib.nullcontext(),
        "get_device_properties": needs("get_device_properties", SimpleNamespace(
            name="Pretended", uuid="GPU-0", total_memory=TOTAL, multi_processor_count=132, major=9, minor=0)),
        "get_device_name": needs("get_device_name", "Pretended"),
        "is_current_stream_capturing": lambda: books.capture is not None,
        "set_sync_debug_mode": lambda mode: setattr(books, "sync_debug", DEBUG.get(mode, mode)),
        "get_sync_debug_mode": lambda: books.sync_debug,
        "graph_pool_handle": lambda: (0, 1), "CUDAGraph": make_graph(books), "graph": make_capture(books, names)}


def factory(real):
    """Make a replacement of a function of torch that takes a device, or pinned memory."""
    def made(*args, pin_memory=False, **kwargs):
        before, local.asked = getattr(local, "asked", False), True
        try:
            out = real(*args, **kwargs)
        finally:
            local.asked = before
        return put(out, PINNED) if pin_memory else out
    return made


def drawing(books, real):
    """Make a replacement of a function of torch that draws random numbers."""
    def drawn(*args, device=None, **kwargs):
        if books.locked and device is not None and is_cuda(device):
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        return real(*args, device=device, **kwargs)
    return drawn


def new(real):
    """Make a replacement of Tensor.new_zeros and the like, whose device may differ from the tensor's."""
    def made(tensor, *args, device=None, pin_memory=False, **kwargs):
        out = real(tensor, *args, **kwargs)
        if device is not None or pin_memory:
            with unseen():
                out = put(out.clone(), PINNED if pin_memory else CARD if is_cuda(device) else HOST)
        return out
    return made


def is_cuda(device) -> bool:
    return torch.device(device).type == "cuda"


def tensor_functions(books):
    """Return replacements of methods of Tensor, as (class or module, name) -> function."""
    found = {(Tensor, name): new(getattr(Tensor, name)) for name in NEW}
    found |= {(torch, name): factory(getattr(torch, name)) for name in FACTORIES}
    found |= {(torch, name): drawing(books, found[torch, name]) for name in ("rand", "randn")}
    real_to, real_tensor, real_numpy, real_tolist = Tensor.to, torch.tensor, Tensor.numpy, Tensor.tolist
    real_array, real_hot, real_as, real_auto = Tensor.__array__, F.one_hot, torch.as_tensor, torch.autocast

    def to(x, *args, copy=False, non_blocking=False, **kwargs):
        if args and isinstance(args[0], Tensor):
            args, kwargs = (), {"device": args[0].device, "dtype": args[0].dtype} | kwargs
        device, dtype, later, layout = torch._C._nn._parse_to(*args, non_blocking=non_blocking, **kwargs)
        old, want = lies(x), lies(x)
        if device is not None:
            want = CARD if device.type == "cuda" else HOST if old == CARD else old
        how = {"memory_format": layout} if layout else {}
        if old in (want, EITHER):
            return real_to(x, dtype or x.dtype, copy=copy, **how)
        moved(books, old, want, later)
        with unseen():
            y = real_to(x, dtype or x.dtype, copy=True, **how)
        return put(y, want)

    def tensor(data, *args, device=None, **kwargs):
        out = real_tensor(data, *args, **kwargs)
        if device is not None and is_cuda(device):
            moved(books, HOST, CARD, False)
            put(out, CARD)
        return out

    def as_tensor(data, dtype=None, device=None):
        if not isinstance(data, Tensor):
            there = device is not None and is_cuda(device)
            return torch.tensor(data, dtype=dtype, device=device) if there else real_as(data, dtype=dtype)
        return data.to(device or data.device, dtype or data.dtype)

    def numpy(x, **kwargs):
        refuse_numpy(x)
        return real_numpy(x, **kwargs)

    def array(x, *args, **kwargs):
        refuse_numpy(x)
        return real_array(x, *args, **kwargs)

    def tolist(x):
        if lies(x) == CARD:
            books.note("sync", "tolist")
            with unseen():
                return real_tolist(x)
        return real_tolist(x)

    def pin_memory(x, *_):
        if lies(x) == CARD:
            raise RuntimeError("cannot pin 'torch.cuda' tensors: only dense CPU tensors can be pinned (pretended)")
        with unseen():
            return put(x.clone(), PINNED)

    def one_hot(x, num_classes=-1):
        if lies(x) != CARD:
            return real_hot(x, num_classes)
        if num_classes < 0:
            books.note("sync", "one_hot without a number of classes")
            num_classes = int(x.cpu().max()) + 1
        # CUDA does not check the numbers.
        return (x[..., None] == torch.arange(num_classes, device=GPU)).long()

    def autocast(kind, *args, **kwargs):
        return real_auto("cpu" if kind == "cuda" else kind, *args, **kwargs)
    def new_tensor(x, data, dtype=None, device=None):
        return torch.tensor(data, dtype=dtype or x.dtype, device=device or x.device)
    found |= {(Tensor, "to"): to, (Tensor, "new_tensor"): new_tensor, (Tensor, "numpy"): numpy,
              (Tensor, "cpu"): lambda x: to(x, CPU), (Tensor, "cuda"): lambda x, *_, **k: to(x, GPU, **k),
              (Tensor, "tolist"): tolist,
              (Tensor, "__array__"): array, (Tensor, "pin_memory"): pin_memory,
              (Tensor, "is_pinned"): lambda x, *_: lies(x) == PINNED,
              (Tensor, "device"): property(lambda x: GPU if lies(x) == CARD else CPU),
              (Tensor, "is_cuda"): property(lambda x: lies(x) == CARD),
              (Tensor, "is_cpu"): property(lambda x: lies(x) != CARD),
              (torch, "tensor"): tensor, (torch, "as_tensor"): as_tensor, (F, "one_hot"): one_hot,
              (torch, "autocast"): autocast}
    return found


def holding(books, real=cuda_graphs.record_step):
    """Return a replacement of cuda_graphs.record_step that lets graphs be compared with their steps, see capture.py."""
    def record(step, *args):
        known = len(books.graphs)
        replay = real(step, *args)
        for graph in books.graphs[known:]:
            graph.step = step
        return replay
    return record


def ended(books):
    def end(device, pool):
        if not books.shaken:
            raise RuntimeError("not currently recording to mempool_id (pretended)")
        books.shaken = False
    return end


def refuse_numpy(x) -> None:
    if lies(x) == CARD:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
                        "memory first. (pretended)")


@contextlib.contextmanager
def pretend(books: Books | None = None):
    """Pretend that this machine has a GPU; yield the Books. Other threads that compute enter Kernels themselves."""
    books = books or Books()
    changes = tensor_functions(books) | {(torch.cuda, name): f for name, f in cuda_functions(books).items()}
    changes |= {(cuda_graphs, "record_step"): holding(books), (torch._C, "_cuda_endAllocateToPool"): ended(books)}
    missing, before = object(), {}
    try:
        for (owner, name), value in changes.items():
            before[owner, name] = owner.__dict__.get(name, missing)
            setattr(owner, name, value)
        with Kernels(books):
            yield books
    finally:
        for (owner, name), value in before.items():
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
