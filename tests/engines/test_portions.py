"""Clients that make a part of their steps: the batches are the first ones of a whole training, in both engines."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmpi.engines.batch_plan import LocalTraining, Portion, count_local_steps, draw_batches
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from tests.federations import SIZES, Digits, Lab, apart, method, mlp

LOCAL = LocalTraining(seed=3, round=2, batch=4, epochs=3, steps=None, lr=.1, momentum=0.)
# Larger clients make fewer steps than smaller ones, one makes a single step, and one all.
PORTIONS = {0: (1, 6), 2: (2, 18), 4: (1, 3), 5: (11, 12), 6: (5, 6), 7: (1, 1)}


@pytest.mark.parametrize("made, whole, steps, kept", [
    (1, 9, 9, 1), (8, 9, 9, 8), (9, 9, 9, 9), (1, 9, 3, 1), (7, 9, 3, 2), (1, 9, 0, 0), (5, 10, 1, 1), (0, 9, 9, 1)])
def test_a_portion_shortens_each_part_of_a_training(made, whole, steps, kept):
    assert Portion(made, whole).shorten(steps) == kept


def test_the_first_batches_are_those_of_a_whole_training():
    whole, some = (draw_batches(LOCAL._replace(portion=portion), 5, 1, 11) for portion in (None, Portion(4, 9)))
    assert (len(whole.count), len(some.count)) == (9, 4) == (9, count_local_steps(
        LOCAL._replace(portion=Portion(4, 9)), 11))
    np.testing.assert_array_equal(some.index, whole.index[:4])
    np.testing.assert_array_equal(some.count, whole.count[:4])


def train(engine, name: str, portions=PORTIONS, **settings):
    """Return a laboratory after a round in which some clients make a part of their steps."""
    lab = Lab(method(name, mlp(), **settings), Digits(), engine)
    if portions:
        lab.group.set_portions(np.array([*portions]), np.array([*portions.values()]))
    lab.round(0)
    return lab


@pytest.mark.parametrize("name, settings", [
    ("fedavg", {}), ("fedprox", {"mu": .5}), ("fedrep", {}), ("ditto", {}), ("pfedme", {}), ("per_fedavg", {}),
    ("fedcps", {}), ("fedsr", {})])
def test_both_engines_make_the_same_part(name, settings):
    looped, vectorised = train(Loop(), name, **settings), train(Vmap(), name, **settings)
    assert apart(looped.state(), vectorised.state()) < 2e-5
    assert apart(looped.state(), train(Loop(), name, {}, **settings).state()) > 1e-3
    np.testing.assert_array_equal(looped.group.counter.table, vectorised.group.counter.table)
    assert not looped.group.portions      # they were for one round


def test_a_part_of_the_steps_is_as_good_as_so_many_steps():
    """FedAvg with a third of the steps of 57 samples: 2 of 6; the others wait. Those are the two first batches."""
    lab = Lab(method("fedavg", mlp()), Digits())
    who = lab.who(0).only(np.arange(len(SIZES)) == 2)
    lab.group.set_portions(np.array([2]), np.array([[1, 3]]))
    lab.round(0, who)
    other = Lab(method("fedavg", mlp()), Digits(), train=replace(lab.config.train, steps=2))
    other.round(0, who)
    torch.testing.assert_close(lab.shared.w, other.shared.w, rtol=0, atol=0)
    assert lab.group.counter.table.sum() == 2


def test_a_method_is_told_the_steps_that_are_made():
    told = {}
    for name, engine in (("loop", Loop()), ("vmap", Vmap())):
        lab = Lab(method("fedavg", mlp()), Digits(), engine)
        lab.group.set_portions(np.array([2, 6]), np.array([[1, 3], [1, 2]]))
        found = lab.apply(lambda shared, mine, data: torch.as_tensor(data.steps) + 0 * data.n, range(8))
        told[name] = [int(found[client]) for client in range(8)]
    assert told["loop"] == told["vmap"] == [2, 1, 2, 1, 1, 4, 1, 1]
