"""A rank keeps the most recently used samples, within a bound."""
from __future__ import annotations

import numpy as np
import torch

from fedmpi.clients.sample_cache import SampleCache
from fedmpi.data.federation import Samples

# Bytes of a client with two training samples of two numbers, and a test sample.
EACH = 2 * (8 + 8) + 8 + 8


class Counted:
    """A federation that keeps which clients were read."""

    def __init__(self):
        self.read = []

    def client(self, i):
        self.read.append(i)
        x = np.full((4, 2), i, np.float32)
        return Samples(x[:2], np.full(2, i), x[:0], np.empty(0, np.int64), x[:1], np.full(1, i))


def test_a_client_is_read_when_it_is_first_used():
    federation = Counted()
    shelf = SampleCache(federation, torch.device("cpu"), 3 * EACH)
    for i in (0, 1, 2, 0):
        found = shelf[i]
        assert found["x_train"].tolist() == [[i, i]] * 2 and found["y_train"].tolist() == [i, i]
        assert found["x_test"].tolist() == [[i, i]] and found["x_val"].shape == (0, 2)
    assert federation.read == [0, 1, 2] and shelf.held == 3 * EACH


def test_the_least_recently_used_goes_first():
    federation = Counted()
    shelf = SampleCache(federation, torch.device("cpu"), 3 * EACH)
    # Client 1 is evicted.
    for i in (0, 1, 2, 0, 3):
        assert shelf[i]["y_test"].tolist() == [i]
    assert shelf.held == 3 * EACH and federation.read == [0, 1, 2, 3]
    # Client 0 is evicted for 1, and 2 for 0.
    for i in (0, 2, 3, 1, 0):
        shelf[i]
    assert federation.read == [0, 1, 2, 3, 1, 0] and shelf.held == 3 * EACH


def test_one_client_is_kept_however_large():
    federation = Counted()
    shelf = SampleCache(federation, torch.device("cpu"), EACH - 1)
    for i in (5, 5, 6, 6, 5):
        shelf[i]
    assert federation.read == [5, 6, 5] and shelf.held == EACH
