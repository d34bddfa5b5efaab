"""What a run changes in its process, and how it is put back when the run was called from Python.

Put back: handlers of signals, PyTorch's number of threads, its precision switches and the state of its random
generators. Not put back: how the C library keeps freed memory (clients/malloc.py), which cannot be read, and the folder
of the program in `sys.path`, from which classes of one's own are imported."""
from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedmpi.session import StopFlag


def interrupt(number: int) -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does in Python."""
    raise KeyboardInterrupt


@contextmanager
def handled_signals() -> Iterator[StopFlag]:
    """Yield the flag that signals raise during a run; a second Ctrl-C raises KeyboardInterrupt. Only the main thread of
    a process hears of signals: elsewhere the flag is never raised."""
    stop = StopFlag(interrupt)
    if threading.current_thread() is threading.main_thread():
        stop.install()
    try:
        yield stop
    finally:
        stop.restore()


@contextmanager
def restored_torch() -> Iterator[None]:
    """Put back what a run changes in PyTorch: threads, precision, random generators."""
    import torch

    from fedmpi.models import precision
    from fedmpi.torch_compat import read_tf32, set_tf32
    threads, autocasts = torch.get_num_threads(), precision.is_autocasting()
    tf32 = read_tf32()
    on_gpu = torch.cuda.is_initialized()
    generator, gpu_generators = torch.get_rng_state(), torch.cuda.get_rng_state_all() if on_gpu else []
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        precision.set_precision("bf16" if autocasts else "float32")
        set_tf32(*tf32)
        torch.set_rng_state(generator)
        if on_gpu:
            torch.cuda.set_rng_state_all(gpu_generators)


@contextmanager
def restored_signals(*numbers: int) -> Iterator[None]:
    """Put back the handlers of some signals."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
