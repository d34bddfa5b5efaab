"""In a loss of a method's own, passes move the running statistics of the vector that is trained and of no other."""
from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedmpi.engines.loop import Loop
from fedmpi.engines.optimizer import Optimizer
from fedmpi.methods.fedavg import FedAvg
from fedmpi.models.build import build_model
from fedmpi.models.slices import gather_statistics
from tests.engines.test_own_loss_mode import Trained, WithBatchNorm
from tests.federations import Digits, Lab

# The last client has a batch of a single sample, for which the running statistics serve.
SIZES = (20, 30, 11)


@pytest.fixture(scope="module")
def model():
    return build_model(WithBatchNorm(), (64,), np.dtype("float32"), 10, seed=5)


def cross_entropy(logits, y):
    return F.cross_entropy(logits, y, reduction="none")


def train(model, client, ids=(0, 1, 2), **local):
    """Return what client(w, data) returns for each of these clients, from the model's start."""
    lab = Lab(FedAvg().with_model(model), Digits(sizes=SIZES, test=5), Loop())
    start = model.start.clone()

    def one(shared, mine, data):
        return Trained(client(shared.w, dataclasses.replace(data, local=data.local._replace(**local))))
    found = lab.apply(one, [*ids])
    assert torch.equal(model.start, start)
    return {i: trained.w for i, trained in found.items()}


def statistics(model, w):
    return gather_statistics(w, model.buffers)


@pytest.mark.parametrize("how", ["args", "closure", "without gradients", "scan", "features"])
def test_a_teacher_stays_as_it_is(model, how):
    """A teacher that counts nothing leaves a client exactly what it has without one, whoever was trained before."""
    def client(w, data):
        def loss(v, x, y, teacher=w):
            if how == "without gradients":
                with torch.no_grad():
                    soft = model(v, x)
            else:
                soft = model.features(teacher, x) if how == "features" else model(teacher, x)
            return cross_entropy(model(v, x), y) + 0 * soft.sum(1)
        if how == "scan":
            return data.scan(lambda state, gradient: (state[0] - .1 * gradient(loss, state[0], w),), (w,))[0]
        return data.descend(loss, w, args=(w,) if how == "args" else (), lr=.1)

    def alone(w, data):
        if how == "scan":
            return data.scan(lambda state, gradient: (state[0] - .1 * gradient(model, state[0]),), (w,))[0]
        return data.descend(lambda v, x, y: cross_entropy(model(v, x), y), w, lr=.1)
    expected = train(model, alone)
    for ids in ([0, 1, 2], [2], [1, 2, 0]):
        for i, w in train(model, client, ids).items():
            assert torch.equal(w, expected[i])
            assert not torch.equal(statistics(model, w), statistics(model, model.start))


@pytest.mark.parametrize("scan", [False, True], ids=["descend", "scan"])
def test_a_mixture_moves_the_statistics_of_what_is_trained(model, scan):
    """All of v and nothing of w is v."""
    def client(w, data):
        other = torch.randn_like(w)

        def loss(v, x, y):
            return cross_entropy(model(1. * v + 0. * other, x), y)
        if scan:
            return data.scan(lambda state, gradient: (state[0] - .1 * gradient(loss, state[0]),), (w,))[0]
        return data.descend(loss, w, lr=.1)
    expected = train(model, lambda w, data: data.descend(model, w, lr=.1))
    for i, w in train(model, client).items():
        torch.testing.assert_close(w, expected[i], rtol=0, atol=1e-6)


def test_the_feature_extractor_trained_alone_moves_its_own(model):
    def client(w, data):
        h = w[model.h]
        phi = data.descend(lambda phi, x, y: cross_entropy(model(model.join(phi, h), x), y), w[model.phi])
        assert torch.equal(data.left[len(statistics(model, w))], gather_statistics(phi, model.base.buffers))
        return model.join(phi, h)
    for i, w in train(model, client).items():
        expected = train(model, lambda w, data: data.descend(model, w, only=model.phi))[i]
        torch.testing.assert_close(w, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("local", [{}, {"momentum": .9}, {"optimizer": Optimizer("adam"), "lr": .01}],
                         ids=["sgd", "momentum", "adam"])
def test_a_pull_moves_parameters_alone(model, local):
    def client(w, data, own=True):
        loss = (lambda v, x, y: cross_entropy(model(v, x), y)) if own else model
        return data.descend(loss, w, pull=[(torch.ones_like(w), .5, None)])
    expected = train(model, lambda w, data: client(w, data, own=False), **local)
    for i, w in train(model, client, **local).items():
        torch.testing.assert_close(w, expected[i], rtol=0, atol=1e-5)
