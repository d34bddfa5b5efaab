"""Signals that ask runs and sweeps to save and stop: those of Slurm, Ctrl-C, and that of a closed terminal (SIGHUP)."""
from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)


def is_main_thread() -> bool:
    """Say whether this is the thread of its process that hears of signals."""
    return threading.current_thread() is threading.main_thread()


def install_handler(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> None:
    """Handle signals from now on, except SIGHUP where `nohup` has it ignored. In other threads than the main one, which
    alone hears of signals, nothing is done."""
    for number in numbers if is_main_thread() else ():
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def exit_at_once(number: int) -> None:
    """End this process with the exit code that shells give to a process that the signal ended."""
    os._exit(128 + number)


class StopFlag:
    """A flag that signals raise. The run then saves after the round under way, or gives that round up, and stops.

    Args:
        on_second_interrupt: called with the signal's number if Ctrl-C comes while the flag is up"""

    def __init__(self, on_second_interrupt: Callable[[int], None] = exit_at_once):
        self.asked = False
        # time of the first signal, and the last signal
        self.since: float | None = None
        self.number = 0
        self.on_second_interrupt = on_second_interrupt

    def install(self) -> None:
        """Handle SIGNALS from now on, see `install_handler`."""
        install_handler(SIGNALS, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # nothing else: a handler that prints or writes runs into the very call that it interrupts
        if self.asked and number == signal.SIGINT:
            self.on_second_interrupt(number)
        self.since = self.since or time.monotonic()
        self.asked, self.number = True, number

    def __call__(self) -> bool:
        return self.asked

    def waits(self) -> float:
        """Return the seconds since this process was asked to stop; 0 if it was not."""
        return time.monotonic() - self.since if self.since is not None else 0.
