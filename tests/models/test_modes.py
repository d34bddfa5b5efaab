"""A network is tried before the first round in every way in which a run uses it: in training, and on one sample."""
from __future__ import annotations

import math
import random
from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.errors import BadInput
from fedmpi.models.build import build_model
from fedmpi.models.nets import Custom
from fedmpi.models.seeding import read_all_generators
from tests.federations import Digits, Lab, method
from tests.models.test_models import FLOATS, Given, given


class Changing(nn.Module):
    """Its outputs are changed by a function of them and of the mode."""

    def __init__(self, change):
        super().__init__()
        self.fc1, self.fc2, self.change = nn.Linear(6, 6), nn.Linear(6, 3), change

    def forward(self, x):
        return self.change(self.fc2(self.fc1(x).relu()), self.training)


class Counting(nn.Module):
    """In training it draws or counts its passes."""

    def __init__(self, draw):
        super().__init__()
        self.fc1, self.fc2, self.draw = nn.Linear(6, 6), nn.Linear(6, 3), draw()

    def forward(self, x):
        return self.fc2(self.fc1(x).relu() * (self.draw() if self.training else 1))


@pytest.mark.parametrize("draw", [
    lambda: partial(torch.rand, (), generator=torch.Generator().manual_seed(1)),
    lambda: np.random.default_rng(1).random, lambda: count(1).__next__])
def test_a_network_that_keeps_a_counter_or_a_generator_is_refused(draw):
    with pytest.raises(BadInput, match="^model: the network's forward gives other outputs in each pass in training"):
        build_model(Given(lambda: Counting(draw)), (6,), FLOATS, 3, 0)


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), lambda: np.random.rand(), random.random, lambda: math.nan])
def test_a_network_that_draws_from_the_global_generators_may_do_so(draw):
    before = read_all_generators()
    made = build_model(Given(lambda: Counting(lambda: draw)), (6,), FLOATS, 3, 0)
    # what the other checks draw from NumPy and Python is theirs
    assert read_all_generators()[0] == before[0] and not made.module.training


class Narrowing(nn.Module):
    """It squeezes its features, and so the batch if it is a single sample."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 5, 6), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.conv(x).squeeze())


class Leaving(nn.Module):
    """It leaves a layer out."""

    def __init__(self):
        super().__init__()
        self.one, self.spare, self.out = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10)

    def forward(self, x):
        return self.out(self.one(x).relu())


class MadeFirst(nn.Module):
    """The layer that it calls last is made first."""

    def __init__(self):
        super().__init__()
        self.out, self.one, self.two = nn.Linear(6, 3), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.out(self.two(self.one(x).relu()).relu())


CHANGES = {
    "tuple": (lambda z, training: (z, z) if training else z,
              "forward gives a tuple in training, not a tensor; return the tensor of logits"),
    "dict": (lambda z, training: {"out": z} if training else z, "forward gives a dict in training, not a tensor"),
    "fewer": (lambda z, training: z[:, :2] if training else z,
              r"for samples in training the network gives outputs of shape \(2, 2\), not \(2, 3\); its forward "
              "must give the same whether it trains or not"),
    "failure": (lambda z, training: z @ torch.ones(2) if training else z,
                r"cannot take samples of shape \(6,\), in training: .*test_modes.py:[0-9]*: RuntimeError: "),
    "always dropout": (lambda z, training: functional.dropout(z, .5),
                       r"two passes over the same samples differ in evaluation, .* F.dropout\(x, p, self.training\)"),
    "squeeze": (lambda z, training: z.squeeze(),
                r"for a single sample the network gives outputs of shape \(3,\), not \(1, 3\); name the dimension in "
                r"squeeze, or use flatten\(1\)"),
    "squeeze in training": (lambda z, training: z.squeeze() if training else z,
                            r"for a single sample in training .* shape \(3,\), not \(1, 3\); name the dimension")}


@pytest.mark.parametrize("what", CHANGES)
def test_networks_that_fail_in_training_or_on_one_sample_are_refused(what):
    change, message = CHANGES[what]
    with pytest.raises(BadInput, match=message) as error:
        given(lambda: Changing(change))
    assert str(error.value).startswith("model: ") and "\n" not in str(error.value)


def test_the_batch_must_not_be_squeezed_before_the_head():
    with pytest.raises(BadInput, match=r"for a single sample the network gives outputs of shape \(3,\)"):
        given(Narrowing, (6, 6, 1))


def test_the_samples_must_stay_as_they_are():
    with pytest.raises(BadInput, match="changes its samples in place, .*; write x = x - mean"):
        given(lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Hardtanh(0, .5, inplace=True), nn.Linear(6, 6),
                                    nn.Linear(6, 3)))
    assert given(lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))).size == 63


@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
@pytest.mark.parametrize("name", ["fedavg", "fedper", "ditto"])
def test_a_layer_that_is_left_out_stays_as_it_is(engine, name):
    model = given(Leaving, (64,), 10)
    lab = Lab(method(name, model), Digits(), engine, share=.6).go(2)
    vector = lab.shared.phi if name == "fedper" else lab.shared.w
    spare, one = model.block("spare"), model.block("one")
    assert torch.equal(vector[spare], model.start[spare]) and not torch.equal(vector[one], model.start[one])


def test_a_network_that_draws_is_tried_in_training_without_a_trace():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    model = given(lambda: Changing(lambda z, training: nn.functional.dropout(z, .5, training)))
    assert torch.equal(torch.random.get_rng_state(), before) and not model.module.training
    assert torch.equal(model.start, model.flatten())


def test_batchnorm_without_statistics_is_named_behind_a_forward_of_ones_own():
    class Normed(Changing):
        def __init__(self):
            super().__init__(lambda z, training: z)
            self.fc1 = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, track_running_stats=False))
    with pytest.raises(BadInput, match="cannot take a single sample, .*ValueError: .*; let its BatchNorm keep running"):
        given(Normed)


def test_a_head_that_is_made_before_other_layers_is_named():
    with pytest.raises(BadInput) as error:
        given(MadeFirst)
    assert str(error.value) == (
        "model: out gives the network's outputs, but two is made after it, and the Linear layer that is made last is "
        "the head; make out the last one in __init__, or set model.head=[out]")

    class WithHead(Given):
        head = ("out",)
    model = build_model(WithHead(MadeFirst), (6,), FLOATS, 3, 0)
    assert model.head.size == 21 and model.size == 21 + 2 * 42


def number() -> nn.Module:
    return 3


def test_a_function_that_gives_no_network_is_named():
    with pytest.raises(BadInput, match=r"^model: tests.models.test_modes:number\(\) must return a torch.nn.Module"):
        build_model(Custom(f"{__name__}:number"), (6,), FLOATS, 3, 0)


def test_outputs_for_targets_are_counted_in_words_of_targets():
    with pytest.raises(BadInput, match=r"shape \(3,\), but a target is a single number; .* must have 1 output$"):
        given(lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)), classes=1)
