"""Steps of a day with a GPU that crash, fail and hang as programs on a GPU may: see test_gpu_day.py."""
from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path


def note_one(notes):
    notes.put("sums", what="one", clients=1, ms=float("nan"), error="")


def note_cases(notes, end):
    """Note a row for each of three cases; in the second one do what `end` names."""
    for case in notes.cases(("first", "second", "third")):
        if case == "second":
            globals()[end]()
        notes.put("sums", what=case, clients=1, ms=1., error="")


def crash():
    print("CUDA error: an illegal memory access was encountered", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def fail():
    raise RuntimeError("CUDA error: unspecified launch failure")


def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


def talk_for_ever(notes):
    while True:
        notes.put("ceilings", last=time.monotonic())
        time.sleep(.05)


def note_and_hang(notes, told):
    note_one(notes)
    Path(told).touch()
    hang()


def note_round(notes, kernel):
    notes.put("round", kernels_ms={kernel: 1.})


def leave_a_child(notes):
    """Start a program in its own session, as launchers do, and hang."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    notes.put("machine", child=child.pid, own=os.getpid())
    hang()


def wait_for_ever(notes):
    notes.put("machine", own=os.getpid())
    hang()


def attempt_what_fails(notes):
    found, error = notes.attempt(fail)
    notes.put("sums", what="failed", clients=1, ms=found, error=error)
