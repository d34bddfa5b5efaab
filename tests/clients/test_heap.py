"""Memory that is freed and asked for again stays with the process."""
from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from fedmpi.clients import heap

GLIBC = platform.libc_ver()[0] == "glibc"
STEPS = """
import sys, numpy as np, resource
from fedmpi.clients import heap
if "keep" in sys.argv:
    heap.keep()
def step():
    return len([np.ones(1 << 20) for _ in range(5)])
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
    """A step of 40 MB, ten times."""
    assert heap.keep()
    assert faults() > 5000 > 500 > faults("keep")


def test_other_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: object())
    assert heap.keep() is False
