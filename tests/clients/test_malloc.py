"""Memory that is freed and allocated again stays with the process."""
from __future__ import annotations

import platform
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.rig import Rig
from benchmarks.synthetic import Synthetic
from fedmpi.clients import malloc
from fedmpi.comm.transport import Solo

GLIBC = platform.libc_ver()[0] == "glibc"
STEPS = """
import sys, numpy as np, resource
from fedmpi.clients import malloc as heap
if "keep" in sys.argv:
    heap.keep_freed_memory()
def step():
    return len([np.ones(1 << 20) for _ in range(8)])
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments: str) -> int:
    return int(subprocess.run([sys.executable, "-c", STEPS, *arguments], capture_output=True, text=True,
                              check=True).stdout)


@pytest.mark.skipif(not GLIBC, reason="the C library is not glibc")
def test_pages_are_not_asked_for_again():
    """A step that uses 64 MB is repeated ten times."""
    assert malloc.keep_freed_memory()
    # There are few faults because pages may be large ones on some systems.
    assert faults() > 100 > 50 > faults("keep")


def test_every_rank_does_it(monkeypatch):
    kept = []
    monkeypatch.setattr(malloc, "keep_freed_memory", lambda: kept.append(1))
    Rig(Solo(), Synthetic((4,), 2, np.ones(3, np.int64)), {"model": "mlp"})
    assert kept


def test_other_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda name: object())
    assert malloc.keep_freed_memory() is False
