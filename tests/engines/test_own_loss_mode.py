"""A loss of a method's own finds the network in training mode, whatever was done with it before."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmpi.engines.loop import Loop
from fedmpi.methods.fedavg import FedAvg
from fedmpi.methods.fedcr import FedCR
from fedmpi.methods.fedsr import FedSR
from fedmpi.models.build import build_model
from tests.federations import Digits, Lab


class Trained(NamedTuple):
    w: Tensor


@dataclass(frozen=True)
class WithDropout:
    def build(self, shape, classes):
        return nn.Sequential(nn.Linear(shape[0], 16), nn.ReLU(), nn.Dropout(.5), nn.Linear(16, classes))


@dataclass(frozen=True)
class WithBatchNorm:
    policy = "average"

    def build(self, shape, classes):
        return nn.Sequential(nn.Linear(shape[0], 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))


@pytest.fixture(params=[WithDropout(), WithBatchNorm()], ids=["dropout", "batchnorm"])
def method(request):
    return FedAvg().with_model(build_model(request.param, (64,), np.dtype("float32"), 10, seed=5))


def train(method, ids, own: bool):
    """Return the weights of clients after a descent by the cross-entropy, or by the same as a loss of the method's own.
    """
    lab = Lab(method, Digits(sizes=(20, 11, 30), test=5), Loop())

    def loss(w, x, y):
        return F.cross_entropy(method.model(w, x), y, reduction="none")

    def client(shared, mine, data):
        return Trained(data.descend(loss if own else method.model, shared.w))
    return {i: found.w for i, found in lab.apply(client, ids).items()}


def test_it_does_not_depend_on_what_was_done_before(method):
    alone = train(method, [2], own=True)[2]
    # evaluation and the training of others leave the network in either mode
    method.model.eval()
    assert torch.equal(train(method, [2], own=True)[2], alone)
    method.model.train_all(9)
    assert torch.equal(train(method, [0, 1, 2], own=True)[2], alone)


def test_it_trains_as_the_network_itself_does(method):
    own, networks = train(method, [0, 2], own=True), train(method, [0, 2], own=False)
    for i, w in networks.items():
        torch.testing.assert_close(own[i], w, rtol=0, atol=1e-5)


@pytest.mark.parametrize("cls", [FedSR, FedCR])
def test_a_code_behind_the_extractor_trains_with_its_dropout_and_is_evaluated_without(cls):
    model = build_model(WithDropout(), (64,), np.dtype("float32"), 10, seed=5)
    method, modes = cls(ft=2).with_model(model), []
    lab = Lab(method, Digits(sizes=(20, 11), test=5), Loop())
    dropout, = (layer for layer in method.net.encoder.module.modules() if isinstance(layer, nn.Dropout))
    dropout.register_forward_hook(lambda layer, given, result: modes.append(layer.training))
    for _ in range(2):
        lab.apply(method.client, [0, 1])
        assert modes == [True] * 2 * 2
        modes.clear()
        for weights in lab.apply(method.personal, [0, 1]).values():
            model.eval()
            method.predict(weights, torch.ones(3, 64))
        assert modes and not any(modes)
        modes.clear()
