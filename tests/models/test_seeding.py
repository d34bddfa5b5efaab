"""What a network's code draws is the seed's, first weights as in forward passes, whichever generator it draws from."""
from __future__ import annotations

import random
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.engines.engine_choice import find_vmap_obstacle
from fedmpi.engines.loop import Loop
from fedmpi.errors import BadInput
from fedmpi.methods.fedavg import FedAvg
from fedmpi.models.build import build_model, make_blank_samples
from fedmpi.models.nets import MLP
from tests.clients.verbs import Bench, plain

DRAWS = {"torch": lambda: torch.rand(1).item(), "numpy": lambda: np.random.rand(), "random": random.random}


@dataclass(frozen=True)
class Drawn:
    draw: object

    def build(self, shape, classes):
        net = nn.Sequential(nn.Linear(shape[0], 4), nn.ReLU(), nn.Linear(4, classes))
        with torch.no_grad():
            for value in net.parameters():
                value.fill_(self.draw())
        return net


class Skipping(nn.Module):
    """A network that leaves a layer out at random while it is trained (stochastic depth)."""

    def __init__(self, inputs, classes, draw):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(inputs, 8), nn.Linear(8, 8), nn.Linear(8, classes)
        self.draw = draw

    def forward(self, x):
        h = self.first(x).relu()
        return self.last(h if self.training and self.draw() < .5 else h + self.second(h).relu())


@dataclass(frozen=True)
class Skips:
    draw: object

    def build(self, shape, classes):
        return Skipping(shape[0], classes, self.draw)


def seed_all(number):
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(number)


def build(draw, seed=3):
    return build_model(Drawn(draw), (5,), "float32", 2, seed)


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_has_its_weights_and_the_generators_go_on(name):
    draw = DRAWS[name]
    seed_all(1)
    expected = [draw() for _ in range(3)]
    seed_all(1)
    found = [draw()]
    model = build(draw)
    found.append(draw())
    again = build(draw)
    found.append(draw())
    assert found == expected and torch.equal(model.start, again.start)
    assert not torch.equal(build(draw, seed=4).start, model.start)
    first, second = model.starts(2)
    assert torch.equal(first, model.start) and not torch.equal(second, first)


@pytest.mark.parametrize("seed", [2**32 - 1, 2**63 - 1])
def test_a_large_seed_is_one_for_all_generators(seed):
    assert torch.equal(build(DRAWS["numpy"], seed).start, build(DRAWS["numpy"], seed).start)


def test_a_generator_of_ones_own_needs_a_seed():
    with pytest.raises(BadInput, match="0.weight has other first values in each copy of the network, although the"):
        build(np.random.default_rng().random)
    assert build(lambda: np.random.default_rng(5).random()).start[0] == pytest.approx(.8050029)


@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_a_forward_pass_are_those_of_seed_round_and_client(name):
    drawn = []

    def draw():
        drawn.append(DRAWS[name]())
        return drawn[-1]
    bench = Bench(sizes=(30, 30), net=build_model(Skips(draw), (64,), "float32", 10, seed=1))

    def train(clients, seed=3, when=0):
        seed_all(len(drawn))        # whatever was drawn before
        drawn.clear()
        bench.run(Loop(), plain, clients, epochs=1, seed=seed, round=when)
        return drawn[:]
    first = train([0])
    assert len(first) == 3 and train([0]) == first and train([1, 0])[3:] == first
    assert len({*map(tuple, (first, train([1]), train([0], when=1), train([0], seed=4)))}) == 4


@pytest.mark.parametrize("name, why", [
    ("numpy", "^it draws from a generator of NumPy or Python, which would be once for all clients$"),
    ("random", "^it draws from a generator of NumPy or Python, which would be once for all clients$"),
    ("torch", "random")])
def test_a_network_that_draws_is_left_to_loop(name, why):
    model = build_model(Skips(DRAWS[name]), (64,), "float32", 10, seed=1)
    method = FedAvg().with_model(model)
    found = find_vmap_obstacle(method, *method.init(2), make_blank_samples((64,), "float32"))
    assert found[0] == "the network" and re.search(why, found[1])


@dataclass(frozen=True)
class Guessing(FedAvg):
    """A method whose clients draw from a generator that no run knows of."""

    def client(self, shared, mine, data):
        return super().client(shared, mine, data) if np.random.rand() < 2 else None


def test_a_method_that_draws_is_left_to_loop():
    method = Guessing().with_model(build_model(MLP(hidden=8), (64,), "float32", 10, seed=1))
    name, why = find_vmap_obstacle(method, *method.init(2), make_blank_samples((64,), "float32"))
    assert name.endswith(".client") and why.startswith("it draws from a generator of NumPy or Python")
