"""Ranks are killed at random, and the digest is that of an uninterrupted run.

`python -m tests.kills` does so forty times, with eight methods."""
from __future__ import annotations

import sys

import pytest

from tests.kills import survives


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
@pytest.mark.slow("two jobs under a real launcher: one that is killed, and the one that continues it")
def test_a_random_kill(tmp_path, warm):
    said = []
    well = survives(1, seed=2, srun=False, folder=tmp_path, report=said.append, python=warm, rounds=12)
    assert well, "\n".join(said)
    assert sum(line.startswith("kill") for line in said) == 1 and said[-1].endswith("equal")
