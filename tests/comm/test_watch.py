"""Which ranks keep the others waiting, and what is said of them; tests/test_interrupted.py stops real ones."""
from __future__ import annotations

import numpy as np
import pytest

from fedmpi.comm.orders import Order
from fedmpi.comm.watch import doing, missing

IN, AT_WORK = np.array([7, 1, Order.SUM, 3, -1, 0]), np.array([7, 0, Order.TRAIN, 3, 5, 0])


@pytest.mark.parametrize("silent, still, known, late", [
    ((9, 10, 0), (10, 10, 10), (AT_WORK,) * 3, []),               # the limit may be reached
    ((11, 0, 0), (11, 11, 0), (IN, AT_WORK, IN), [1]),            # silence comes first, wherever it began
    ((0, 0, 0), (11, 11, 11), (IN, AT_WORK, IN), [2]),            # who is stuck at work, not who waits for it
    ((0, 0, 0), (99, 9, 99), (IN, AT_WORK, IN), [])])             # a long round: clients come and go
def test_who_is_missing(silent, still, known, late):
    ranks = (1, 2, 3)
    assert missing(*(dict(zip(ranks, values, strict=True)) for values in (silent, still, known)), limit=10) == late


@pytest.mark.parametrize("words, said", [
    (AT_WORK, "client 5, round 4, order TRAIN"), (IN, "round 4, order SUM"),
    ([7, 0, Order.TRAIN, 0, 5, 2], "client 5 and 2 more, round 1, order TRAIN"),
    ([-1] * 6, "ready for its first order")])
def test_what_a_rank_does(words, said):
    assert doing(np.array(words)) == said
