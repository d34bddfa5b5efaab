"""A network is tried before the first round in every way in which a run uses it: in training, and on one sample."""
from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmpi.errors import BadInput
from tests.models.test_models import given


class Changing(nn.Module):
    """Its outputs are changed by a function of them and of the mode."""

    def __init__(self, change):
        super().__init__()
        self.fc1, self.fc2, self.change = nn.Linear(6, 6), nn.Linear(6, 3), change

    def forward(self, x):
        return self.change(self.fc2(self.fc1(x).relu()), self.training)


class Narrowing(nn.Module):
    """It squeezes its features, and so the batch if it is a single sample."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 5, 6), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.conv(x).squeeze())


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
    from fedmpi.models.build import build_model
    from tests.models.test_models import FLOATS, Given

    class WithHead(Given):
        head = ("out",)
    model = build_model(WithHead(MadeFirst), (6,), FLOATS, 3, 0)
    assert model.head.size == 21 and model.size == 21 + 2 * 42
