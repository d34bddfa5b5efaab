"""Clients that are held back: who they are, and what the federation holds of them."""
from __future__ import annotations

import numpy as np
import pytest

from fedmpi.config.schema import resolve
from fedmpi.data.assignment import draw_new_clients
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.data.partitions import Pathological
from fedmpi.errors import BadInput


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_new_clients_hold_what_they_held_and_come_last(federation):
    whole, held = federation(seed=3), federation(seed=3, new_clients=4)
    drawn = held.new_clients
    assert drawn == sorted(set(drawn)) and len(drawn) == 4 and whole.new_clients == []
    order = [i for i in range(20) if i not in drawn] + drawn
    assert all(same(held.client(i), whole.client(order[i])) for i in range(20))
    assert held.clients == len(held.sizes) == 16
    np.testing.assert_array_equal(held.counts, whole.counts[order[:16]])
    np.testing.assert_array_equal(held.label_counts, whole.label_counts[order[:16]])
    held.check()
    with pytest.raises(IndexError, match="client 20 of 20"):
        held.client(20)


def test_who_is_new_is_drawn_by_the_seed_alone(federation, settings):
    drawn = [draw_new_clients(settings(new_clients=4), seed).tolist() for seed in range(30)]
    assert drawn[3] == federation(seed=3, new_clients=4).new_clients
    assert drawn[3] == draw_new_clients(settings(new_clients=4, fraction=.5), 3).tolist()
    assert len({*map(tuple, drawn)}) > 25 and set(np.concatenate(drawn)) == set(range(20))


def test_groups_go_with_their_clients(federation):
    partition = Pathological()
    whole, held = (federation(partition=partition, new_clients=n) for n in (0, 5))
    kept = np.setdiff1d(np.arange(20), held.new_clients)
    np.testing.assert_array_equal(held.groups, whole.groups[kept])
    held.check()


def test_only_new_clients_make_another_federation(settings):
    """The key of a federation without new clients stays as it was."""
    keys = [Federation(prepare_federation(settings(new_clients=n), 0)).key for n in (0, 3, 4)]
    assert len(set(keys)) == 3 and "new_clients" not in Federation(prepare_federation(settings(), 0)).settings


@pytest.mark.parametrize("given, said", [
    ({"clients": 5, "new_clients": 5}, "data.new_clients = 5: with clients = 5 nobody would be trained; lower"),
    ({"clients": 5, "new_clients": 9}, "data.new_clients = 9: with clients = 5 nobody"),
    ({"new_clients": -1}, "data.new_clients = -1: should be greater than or equal to 0"),
    ({"new_clients": 1.5}, "data.new_clients = 1.5"), ({"new_clients": "two"}, "data.new_clients = 'two'")])
def test_wrong_numbers_are_refused_in_one_line(given, said):
    with pytest.raises(BadInput) as caught:
        resolve({"data": given})
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)
