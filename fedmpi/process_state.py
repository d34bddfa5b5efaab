"""What a run changes in its process, and how it is put back when the run was called from Python.

Put back: handlers of signals, PyTorch's number of threads, its switches of precision and determinism, and the states of
its random generators and of the global ones of NumPy and Python. Set aside meanwhile: what the caller has switched on
that would change results or stop a run, such as `torch.no_grad()`, `torch.autocast`, another default type or device.
Not put back: how the C library keeps freed memory (clients/malloc.py), which cannot be read; the current folder in
`sys.path`, from which classes of one's own are imported; on a GPU, the variable CUBLAS_WORKSPACE_CONFIG, which cuBLAS
reads once, and the current device; under a launcher, the variables that MPI reads when it starts (see
mpi_world.open_world), and on several ranks `sys.excepthook` and a function that is called at exit (see
python_api.end_job_with_program)."""
from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedmpi.stop_signals import SIGNALS, StopFlag, is_main_thread


def interrupt(number: int) -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does in Python."""
    raise KeyboardInterrupt


@contextmanager
def handle_signals() -> Iterator[StopFlag]:
    """Yield the flag that signals raise during a run; a second Ctrl-C raises KeyboardInterrupt. Only the main thread of
    a process hears of signals: elsewhere the flag is never raised."""
    stop = StopFlag(interrupt)
    with restore_signals(*SIGNALS):
        stop.install()
        yield stop


# Held while something computes: threads of one process share what is changed here, such as random generators.
COMPUTING = threading.RLock()


def renew_lock() -> None:
    """Make a new lock in a child process: the thread that held the old one was left behind in the parent."""
    global COMPUTING
    COMPUTING = threading.RLock()


os.register_at_fork(after_in_child=renew_lock)

# the devices for which the caller may have switched autocast on
AUTOCAST_DEVICES = ("cpu", "cuda")


@contextmanager
def set_modes_aside() -> Iterator[None]:
    """Compute as PyTorch does by default, with gradients, in float32 and on the CPU, whatever the caller has set."""
    import torch

    from fedmpi.torch_compat import restore_rounding
    modes = [torch.is_autocast_enabled(device) for device in AUTOCAST_DEVICES]
    number, device = torch.get_default_dtype(), torch.get_default_device()
    # that also switches gradients on
    with torch.inference_mode(False), restore_rounding():
        try:
            torch.set_default_dtype(torch.float32)
            # to set it, though to the same, makes each of PyTorch's functions slower
            if device.type != "cpu":
                torch.set_default_device(None)
            for name in AUTOCAST_DEVICES:
                torch.set_autocast_enabled(name, False)
            yield
        finally:
            for name, mode in zip(AUTOCAST_DEVICES, modes, strict=True):
                torch.set_autocast_enabled(name, mode)
            torch.set_default_dtype(number)
            if device.type != "cpu":
                torch.set_default_device(device)


@contextmanager
def isolate_computation() -> Iterator[None]:
    """Compute as if this were the only program in the process.

    The modes that the caller has set are set aside meanwhile. Afterwards what a run changes is put back: PyTorch's
    threads, precision and order of sums on a GPU, and the random generators of PyTorch, NumPy and Python. One thread of
    a process computes so at a time; others wait."""
    import torch

    from fedmpi.models import precision
    from fedmpi.models.seeding import restore_plain_generators
    with COMPUTING, set_modes_aside(), restore_plain_generators():
        threads, autocasts, cudnn = torch.get_num_threads(), precision.is_autocasting(), torch.backends.cudnn
        chosen = cudnn.deterministic, cudnn.benchmark, torch.utils.deterministic.fill_uninitialized_memory
        ordered = torch.get_deterministic_debug_mode()
        on_gpu, seed = torch.cuda.is_initialized(), torch.initial_seed()
        generator, gpu_generators = torch.get_rng_state(), torch.cuda.get_rng_state_all() if on_gpu else []
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            precision.set_precision("bf16" if autocasts else "float32")
            cudnn.deterministic, cudnn.benchmark, torch.utils.deterministic.fill_uninitialized_memory = chosen
            # `use_deterministic_algorithms` would import PyTorch's compiler, which takes 3 seconds.
            torch.set_deterministic_debug_mode(ordered)
            torch.set_rng_state(generator)
            if on_gpu:
                torch.cuda.set_rng_state_all(gpu_generators)
            else:
                # A run seeds GPUs that nobody has used yet, too: the caller may use them afterwards. Another seed that
                # torch.cuda.manual_seed has noted for them cannot be read.
                torch.cuda.manual_seed_all(seed)


@contextmanager
def restore_signals(*numbers: int) -> Iterator[None]:
    """Put back the handlers of some signals, which only the main thread can have changed."""
    before = {number: signal.getsignal(number) for number in numbers if is_main_thread()}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                # None: a handler that was not set from Python cannot be set again from Python
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
