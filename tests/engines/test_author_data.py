"""What data offers to authors beside training: steps, counts of classes, outputs of functions, batches in a scan."""
from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmpi.engines.loop import Loop
from fedmpi.engines.training_options import watch_method
from fedmpi.engines.vmap import Vmap
from fedmpi.errors import BadInput
from fedmpi.method import Nothing
from fedmpi.methods.fedavg import FedAvg
from fedmpi.models.build import build_model
from fedmpi.models.losses import attach_logits, count_classes
from tests.federations import SIZES, TRAIN, Digits, Lab

engines = pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])


class Told(NamedTuple):
    told: Tensor


@pytest.fixture
def ask(mlp, federation):
    """Return what `question(method, w, data)` is answered at each client, by client."""
    def ask(engine, question, train=TRAIN):
        asked = FedAvg().with_model(mlp)
        lab = Lab(asked, federation, engine, train)

        def function(shared, mine, data):
            return Told(torch.as_tensor(question(asked, shared.w, data)))
        return {client: found.told for client, found in lab.apply(function, range(8)).items()}
    return ask


@engines
@pytest.mark.parametrize("train, steps", [
    ({}, [2, 1, 6, 1, 1, 4, 2, 1]), ({"epochs": 3}, [6, 3, 18, 3, 3, 12, 6, 3]), ({"steps": 7}, [7] * 8)], ids=str)
def test_steps_are_those_that_a_descent_makes(ask, engine, train, steps):
    found = ask(engine, lambda method, w, data: data.steps + 0 * data.n, replace(TRAIN, **train))
    assert [int(found[c]) for c in range(8)] == steps
    counted = ask(engine, lambda method, w, data: data.scan(
        lambda state, grad: (state[0] + 1 + 0 * grad(method.model, state[1]).sum(), state[1]), (torch.zeros(()), w))[0],
        replace(TRAIN, **train))
    assert [int(counted[c]) for c in range(8)] == steps


def per_sample(method, w, x, y):
    return F.cross_entropy(method.model(w, x), y, reduction="none")


BAD_LOSSES = [(lambda losses: losses.mean(), "not ()"), (lambda losses: losses[:, None], ", 1)"),
              (lambda losses: losses[None], "not (1, ")]


@engines
@pytest.mark.parametrize("spoil, said", BAD_LOSSES)
@pytest.mark.parametrize("verb", ["descend", "scan"])
def test_a_loss_of_ones_own_is_one_of_each_sample(ask, engine, spoil, said, verb):
    """Also in batches of a single sample, which client 5 has."""
    def train(method, w, data, spoil):
        def loss(w, x, y):
            return spoil(per_sample(method, w, x, y))
        if verb == "descend":
            return data.descend(loss, w)
        return data.scan(lambda state, grad: (state[0] - .1 * grad(loss, state[0]),), (w,))[0]
    with pytest.raises(TypeError, match=r"^a loss of your own returns the loss of each sample, \(\d+,\), a") as error:
        ask(engine, lambda method, w, data: train(method, w, data, spoil))
    assert said in str(error.value) and str(error.value).endswith('take no mean over the batch, as by reduction="none"')
    assert len(ask(engine, lambda method, w, data: train(method, w, data, lambda losses: losses))) == 8


@pytest.mark.parametrize("settings, said", [
    ({"pull": (torch.zeros(4), .1)}, "data.descend: pull is a list such as ..centre, strength, block.., where"),
    ({"pull": [(torch.zeros(4), .1)]}, "data.descend: pull is a list such as ..centre, strength, block.., where")])
def test_what_descend_takes_is_said(ask, settings, said):
    with pytest.raises(TypeError, match=said):
        ask(Loop(), lambda method, w, data: data.descend(method.model, w, **settings))
    with pytest.raises(TypeError, match="args is a tensor and not a tuple of tensors; write args=.tensor,."):
        ask(Loop(), lambda method, w, data: data.descend(lambda *_: w, w, args=w))


@engines
def test_steps_follow_the_batches_and_the_samples(ask, engine):
    half = ask(engine, lambda method, w, data: data.subset(.5, 1).steps + 0 * data.n)
    assert [int(half[c]) for c in range(8)] == [1, 1, 3, 1, 1, 2, 1, 1]
    more = ask(engine, lambda method, w, data: data.with_batches(2, 1).steps + 0 * data.n)
    assert [int(more[c]) for c in range(8)] == [4, 2, 12, 2, 2, 8, 4, 2]
    fixed = ask(engine, lambda method, w, data: (data.fixed_steps or 0) + 0 * data.n, replace(TRAIN, steps=7))
    assert {int(n) for n in fixed.values()} == {7}


@engines
def test_class_counts_are_those_of_numpy(ask, engine, federation):
    for question in (lambda method, w, data: data.class_counts,
                     lambda method, w, data: data.with_added_logits(method.model, w).class_counts):
        found = ask(engine, question)
        for c, n in enumerate(SIZES):
            labels = federation.client(c).y_train
            np.testing.assert_array_equal(found[c], np.bincount(labels, minlength=10))
            assert found[c].sum() == n and found[c].dtype == torch.float32


@engines
def test_sums_of_a_function_are_those_of_the_network(ask, engine, mlp, federation):
    by_net = ask(engine, lambda method, w, data: data.class_sums(method.model.base, w[method.model.phi], 10))
    by_function = ask(engine, lambda method, w, data: data.class_sums(method.model.features, w))
    for c in range(8):
        s = federation.client(c)
        z = mlp.features(mlp.start, torch.from_numpy(s.x_train)).detach()
        plain = torch.stack([z[torch.from_numpy(s.y_train) == k].sum(0) for k in range(10)])
        torch.testing.assert_close(by_function[c], plain, rtol=0, atol=1e-4)
        torch.testing.assert_close(by_net[c], by_function[c], rtol=0, atol=1e-5)


@engines
def test_features_of_a_function_can_be_trained_on(ask, engine):
    def train(data, net, w, method):
        return data.with_features(net, w).descend(method.model.head, method.model.start[method.model.h])
    by_net = ask(engine, lambda m, w, data: train(data, m.model.base, w[m.model.phi], m))
    by_function = ask(engine, lambda m, w, data: train(data, m.model.features, w, m))
    loss = ask(engine, lambda m, w, data: data.mean_loss(m.model, w))
    same = ask(engine, lambda m, w, data: data.mean_loss(lambda w, x: m.model(w, x), w))
    for c in range(8):
        torch.testing.assert_close(by_net[c], by_function[c], rtol=0, atol=1e-6)
        torch.testing.assert_close(loss[c], same[c], rtol=0, atol=1e-6)


@engines
def test_a_step_sees_the_mean_over_its_batch_alone(ask, engine, federation):
    """Means over batches, weighted by their samples, give the mean over all samples; a step takes no gradient here."""
    def question(method, w, data):
        def step(state, grad):
            total, seen, w = state
            ones, x = (grad.mean(f, w) for f in (lambda w, x, y: torch.ones(len(y), 1), lambda w, x, y: x))
            return total + x, seen + ones, w
        total, seen, _ = data.scan(step, (torch.zeros(64), torch.zeros(1), w))
        return torch.cat([total, seen])
    # Each client has one batch.
    found = ask(engine, question, replace(TRAIN, batch=57))
    for c in range(8):
        expected = federation.client(c).x_train.mean(0)
        np.testing.assert_allclose(found[c][:64], expected, atol=1e-6)
        assert float(found[c][64]) == pytest.approx(1)


@engines
def test_what_a_step_keeps_of_w_does_not_move_with_it(ask, engine):
    def question(method, w, data):
        def step(state, grad):
            w, before = state
            return grad(method.model, w), w
        w, before = data.scan(step, (w, w), optimize=True)
        return (w - before).norm()
    assert all(float(moved) > 1e-4 for moved in ask(engine, question).values())


def test_targets_have_no_classes():
    logits = attach_logits(torch.tensor([1, 1, 0]), torch.zeros(3, 2))
    assert count_classes(logits, 2).tolist() == [1, 2]
    with pytest.raises(BadInput, match="data.task = regression has targets and no classes"):
        count_classes(torch.tensor([1., 2.]), 2)


@pytest.mark.parametrize("optimize, own, seen", [
    (False, False, {"own steps"}), (False, True, {"own steps", "own loss"}), (True, False, {"own vector"}),
    (True, True, {"own vector", "own loss"})])
def test_a_dry_run_knows_whose_steps_and_loss_these_are(mlp, optimize, own, seen):
    class Scanning(FedAvg):
        def client(self, shared, mine, data):
            def loss(w, x, y):
                return F.cross_entropy(self.model(w, x), y, reduction="none")

            def step(state, grad):
                return (grad(loss if own else self.model, state[0]),)
            return mine, Told(data.scan(step, (shared.w,), optimize=optimize)[0])
    config = SimpleNamespace(seed=0, rounds=1, train=TRAIN, data=SimpleNamespace(new_clients=0))
    made = Scanning().with_model(mlp)
    assert watch_method(made, made.init(1)[0], Nothing(), torch.zeros(1, 64), config) == seen


class TwoConvolutions:
    """Its head begins with a convolution: the features of a sample are 8 x 8 pixels of 8 channels."""
    head = ("conv2", "fc")

    def build(self, shape, classes):
        return nn.Sequential(OrderedDict(conv1=nn.Conv2d(shape[0], 8, 3, padding=1), relu=nn.ReLU(),
                                         conv2=nn.Conv2d(8, 2, 3, stride=2), end=nn.Flatten(),
                                         fc=nn.Linear(18, classes)))


@engines
def test_features_may_be_maps_of_channels(engine):
    model = build_model(TwoConvolutions(), (8, 8, 1), np.dtype("uint8"), 10, seed=5)
    asked = FedAvg().with_model(model)
    lab = Lab(asked, Digits(image=True), engine)

    def question(shared, mine, data):
        features = data.with_features(model.base, shared.w[model.phi])
        again = features.with_features(lambda w, z: z, shared.w)
        h = shared.w[model.h]
        return Told(torch.stack([data.mean_loss(model, shared.w), features.mean_loss(model.head, h),
                                 again.mean_loss(model.head, h)]))
    for client, found in lab.apply(question, range(8)).items():
        torch.testing.assert_close(found.told, found.told[:1].expand(3), msg=f"client {client}: {found.told}")
