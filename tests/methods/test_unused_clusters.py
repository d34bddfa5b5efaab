"""FeSEM and CGPFL where fewer clients than clusters take part in the first round: the other clusters have no member
yet, so their models are still those that all began with, and count nowhere."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.clustering.kmeans_and_linkage import seed_unused
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.models.tables import average_used_rows
from tests.federations import Digits, Lab, method, mlp

SIZES = (20, 30, 40, 30, 20, 40)


@pytest.mark.parametrize("engine", [Loop, Vmap])
@pytest.mark.parametrize("name, table, of", [("fesem", "w", "of"), ("cgpfl", "Omega", "context")])
def test_the_first_clients_of_later_rounds_found_the_other_clusters(name, table, of, engine):
    network = mlp()
    lab = Lab(method(name, network, **{"k" if name == "fesem" else "K": 4}), Digits(SIZES), engine())
    lab.round(0, lab.choose(np.array([0, 1]), 0))
    centres, first = getattr(lab.shared, table), getattr(lab.shared, of)
    used = sorted(first[:2].tolist())
    assert len(used) == 2 and [bool((row != network.start).any()) for row in centres] == [j in used for j in range(4)]
    mean = centres[used].double().mean(0).float()
    start = lab.apply(lambda shared, mine, data: lab.method.find_start_model(shared, mine, None, data), [5], 1)[5]
    torch.testing.assert_close(start, mean, rtol=0, atol=1e-7)
    lab.round(1, lab.choose(np.array([2, 3]), 1))
    assert sorted(getattr(lab.shared, of)[:4].tolist()) == [0, 1, 2, 3]
    # Now all centres count.
    assert (getattr(lab.shared, table) != network.start).any(1).all()


def test_the_mean_of_used_rows():
    start = torch.tensor([1., 2.])
    table = torch.tensor([[1., 2.], [3., 2.], [1., 2.], [1., 8.]])
    assert average_used_rows(table, start).tolist() == [2., 5.]
    assert average_used_rows(start.repeat(3, 1), start).tolist() == start.tolist()
    used = torch.randn(7, 5)
    assert torch.equal(average_used_rows(used, torch.zeros(5)), used.mean(0))


def test_unused_centres_become_the_farthest_rows():
    rows = torch.tensor([[0.], [9.], [4.], [9.5], [-5.]])
    centres = torch.tensor([[7.], [0.], [7.], [7.]])
    unused = torch.tensor([True, False, True, True])
    # 9.5 is farthest from 0, then -5, and then 4, which 9.5 and 0 are both nearer to than any other row has one.
    assert seed_unused(rows, centres, unused).flatten().tolist() == [9.5, 0., -5., 4.]
    assert centres[0] == 7
    # Rows that are centres already leave the others where they are.
    assert seed_unused(rows[:2], centres, unused).flatten().tolist() == [9., 0., 7., 7.]
    for all_or_none in (torch.ones(4, dtype=bool), torch.zeros(4, dtype=bool)):
        assert seed_unused(rows, centres, all_or_none) is centres
