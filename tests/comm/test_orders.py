"""What rank 0 tells the others: of the server's state only what changed."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.comm.orders import Crew
from fedmpi.comm.world import Solo


def fresh(crew, shared) -> list[bool]:
    return crew.news(shared)[0].tolist()


@pytest.fixture
def crew():
    return Crew(Solo(), None, np.zeros(1, np.int64))


def test_what_stays_the_same_tensor_is_not_sent_again(crew):
    w, centres = torch.ones(3), torch.zeros(2, 3)
    assert fresh(crew, (w, centres)) == [True, True]
    assert fresh(crew, (w, centres)) == [False, False]
    assert fresh(crew, (w + 1, centres)) == [True, False]
    assert fresh(crew, (w, centres)) == [True, False]      # as it was the time before last: not what the ranks hold


def test_what_was_changed_in_place_is_sent(crew):
    w, R = torch.ones(3), torch.zeros(4)
    assert fresh(crew, (w, R)) == [True, True]
    R[2:][0] = 5      # through a view
    assert fresh(crew, (w, R)) == [False, True]
    flags, *arrays = crew.news((w.clone(), R))
    assert flags.tolist() == [True, False] and np.array_equal(arrays[0], np.ones(3))
