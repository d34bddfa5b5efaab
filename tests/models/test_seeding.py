"""The first weights of a network are those of the seed, whichever generator its code draws them from."""
from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.errors import BadInput
from fedmpi.models.build import build_model

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


def build(draw, seed=3):
    return build_model(Drawn(draw), (5,), "float32", 2, seed)


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_has_its_weights_and_the_generators_go_on(name):
    draw = DRAWS[name]
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(1)
    expected = [draw() for _ in range(3)]
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(1)
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
