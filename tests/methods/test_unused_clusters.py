"""FeSEM and CGPFL where fewer clients than clusters take part in the first round: the other clusters have no member
yet, so their models are still those that all began with, and count nowhere."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.clustering.kmeans_and_linkage import seed_unused
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.models.tables import average_used_rows, find_nearest_used, list_used_rows
from tests.clients import normed
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
    assert lab.method.list_used(lab.shared).all()


@pytest.mark.parametrize("name, of, policy, settings", [
    ("fesem", "of", "average", {"k": 4}), ("fesem", "of", "local", {"k": 4}),
    ("cgpfl", "context", "average", {"K": 4})])
def test_running_statistics_do_not_make_a_cluster_used(name, of, policy, settings):
    """Those of the table are zeros where they stay with the clients, and not those that all began with."""
    lab = normed.lab(name, policy, sizes=SIZES, **settings)
    assert not lab.method.list_used(lab.shared).any()
    for t, ids in enumerate(([0, 1], [2, 3])):
        lab.round(t, lab.choose(np.array(ids), t))
        assert lab.method.list_used(lab.shared).sum() == 2 * (t + 1)
    assert sorted(getattr(lab.shared, of)[:4].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("name, of", [("fesem", "of"), ("cgpfl", "context")])
def test_a_client_that_comes_back_keeps_its_cluster(name, of):
    lab = Lab(method(name, mlp(), **{"k" if name == "fesem" else "K": 4}), Digits(SIZES))
    lab.round(0, lab.choose(np.array([0, 1]), 0))
    before = getattr(lab.shared, of).tolist()
    lab.round(1, lab.choose(np.array([0, 1]), 1))
    assert getattr(lab.shared, of).tolist() == before
    lab.round(2, lab.choose(np.array([0, 4]), 2))
    after = getattr(lab.shared, of).tolist()
    assert after[:2] == before[:2] and after[4] not in before


@pytest.mark.parametrize("name, table", [("fesem", "w"), ("cgpfl", "Omega")])
def test_a_new_client_is_served_by_a_cluster_that_has_had_members(name, table):
    network = mlp()
    lab = Lab(method(name, network, **{"k" if name == "fesem" else "K": 6}), Digits(SIZES))
    lab.round(0, lab.choose(np.array([0, 1, 2, 3]), 0))
    if name == "fesem":
        used = getattr(lab.shared, table)[lab.method.list_used(lab.shared)]
        for served in lab.apply(lab.method.serve_newcomer, [4, 5], 1).values():
            assert any(torch.equal(served, row) for row in used)
    apart = torch.tensor([3., 1., 2.])
    assert find_nearest_used(apart, torch.tensor([True, False, True])) == 2
    assert find_nearest_used(apart, torch.zeros(3, dtype=bool)) == 1


def test_the_mean_of_used_rows():
    start = torch.tensor([1., 2.])
    table = torch.tensor([[1., 2.], [3., 2.], [1., 2.], [1., 8.]])
    used = list_used_rows(table, start, [])
    assert used.tolist() == [False, True, False, True] and average_used_rows(table, used).tolist() == [2., 5.]
    assert list_used_rows(table, start, [slice(1, 2)]).tolist() == [False, True, False, False]
    every = torch.randn(7, 5)
    for all_or_none in (torch.ones(7, dtype=bool), torch.zeros(7, dtype=bool)):
        assert torch.equal(average_used_rows(every, all_or_none), every.mean(0))


def test_unused_centres_become_the_farthest_rows():
    rows = torch.tensor([[0.], [9.], [4.], [9.5], [-5.]])
    centres = torch.tensor([[7.], [0.], [7.], [7.]])
    unused = torch.tensor([True, False, True, True])
    # 9.5 is farthest from 0; then -5 is, 5 away from it; then 4, whose nearest centre is 4 away.
    assert seed_unused(rows, centres, unused).flatten().tolist() == [9.5, 0., -5., 4.]
    assert centres[0] == 7
    # Rows that are centres already leave the others where they are.
    assert seed_unused(rows[:2], centres, unused).flatten().tolist() == [9., 0., 7., 7.]
    for all_or_none in (torch.ones(4, dtype=bool), torch.zeros(4, dtype=bool)):
        assert seed_unused(rows, centres, all_or_none) is centres
    assert seed_unused(rows[:0], centres, unused) is centres
