"""Ranks that are threads: what one of them does when another fails."""
from __future__ import annotations

import threading

import numpy as np
import pytest

from fedmpi.testing import thread_ranks


def test_a_rank_that_waits_for_a_letter_of_one_that_failed_ends(monkeypatch):
    """Rank 2 waits for rank 1, which waits for rank 0."""
    monkeypatch.setattr(thread_ranks, "WAIT_S", 20)
    ended = {}

    def work(rank):
        try:
            if rank.rank:
                rank.recv(np.empty(1), rank.rank - 1)
            else:
                rank.send(np.ones(1), 1)
                raise ValueError("rank 0")
            rank.recv(np.empty(1), rank.rank - 1)
        except BaseException as error:
            ended[rank.rank] = type(error)
            raise
    with pytest.raises(ValueError, match="rank 0"):
        thread_ranks.run_ranks(3, work)
    assert ended == {0: ValueError, 1: threading.BrokenBarrierError, 2: threading.BrokenBarrierError}
