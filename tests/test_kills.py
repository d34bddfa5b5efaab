"""Ranks killed at random: the digest is that of the uninterrupted run. `python -m tests.kills` does it twenty times."""
from __future__ import annotations

import sys

import pytest

from tests.kills import survives


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
def test_two_random_kills(tmp_path):
    said = []
    assert survives(2, seed=3, srun=False, folder=tmp_path, report=said.append), "\n".join(said)
    assert sum(line.startswith("kill") for line in said) == 2 and said[-1].endswith("equal")
