"""Ctrl-C ends a run; a KeyboardInterrupt that code raises by itself is a fault of that code."""
from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from fedmpi.own_code.failures import is_ctrl_c
from fedmpi.process_state import handle_signals


def raise_by_itself() -> None:
    raise KeyboardInterrupt


def press_ctrl_c_twice() -> None:
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)


def fall_otherwise() -> None:
    raise ValueError


def catch(code: Callable[[], None]) -> BaseException:
    try:
        code()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("code, pressed", [(raise_by_itself, False), (press_ctrl_c_twice, True),
                                           (fall_otherwise, False)])
def test_who_raised_an_interrupt_during_a_run(code, pressed):
    with handle_signals():
        assert is_ctrl_c(catch(code)) is pressed
        assert not is_ctrl_c(KeyboardInterrupt())


def test_outside_of_a_run_python_itself_raises_it():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert is_ctrl_c(catch(raise_by_itself)) and not is_ctrl_c(catch(fall_otherwise))
    finally:
        signal.signal(signal.SIGINT, before)
