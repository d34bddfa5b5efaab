"""The looped engine, which all others are compared with, against torch.optim.SGD and direct computation."""
from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedmpi.engines import batch_plan
from fedmpi.engines.loop_data import LoopData
from fedmpi.models import flat
from tests.federations import Digits, mlp

LOCAL = batch_plan.LocalTraining(seed=3, round=2, batch=10, epochs=2, steps=None, lr=.05, momentum=0.)


@pytest.fixture(autouse=True, params=["small", "large"])
def size(request, monkeypatch):
    """Run tests also with networks that are treated as large."""
    if request.param == "large":
        monkeypatch.setattr(flat, "LARGE_VECTOR_SIZE", 0)


@pytest.fixture(scope="module")
def model():
    return mlp()


@pytest.fixture(scope="module")
def data():
    s = Digits((34,)).client(0)
    return LoopData(torch.from_numpy(s.x_train), torch.from_numpy(s.y_train), client=6, local=LOCAL)


def module_of(model, w):
    """Return a plain module with the parameters w; those of the mlp have the order of the flat vector."""
    module = copy.deepcopy(model.module)
    vector_to_parameters(w.clone(), module.parameters())
    return module


def by_hand(data, model, w, lr=.05, momentum=0., penalty=None, moving=lambda name: True, clip=None):
    """Train with torch.optim.SGD and an ordinary backward pass."""
    module = module_of(model, w)
    module.requires_grad_(False)
    chosen = [p.requires_grad_() for name, p in module.named_parameters() if moving(name)]
    optimiser = torch.optim.SGD(chosen, lr, momentum)
    drawn = batch_plan.draw_batches(data.local, data.client, data.stream, data.n)
    for index, count in zip(drawn.index, drawn.count, strict=True):
        index = torch.from_numpy(index[:count])
        loss = F.cross_entropy(module(data.x[index]), data.y[index])
        if penalty:
            loss = loss + penalty(parameters_to_vector(module.parameters()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if clip:
            for p in chosen:
                p.data.clamp_(*clip)
    return parameters_to_vector(module.parameters()).detach()


def near(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-7)


def centre(model):
    return model.start + .1 * torch.randn(model.size, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("momentum", [0., .9])
def test_descend_is_sgd(data, model, momentum):
    found = data.descend(model, model.start, momentum=momentum)
    sgd = by_hand(data, model, model.start, momentum=momentum)
    near(found, sgd)
    assert torch.equal(found, sgd)
    assert (found - model.start).abs().max() > .01


def test_the_run_sets_rate_and_momentum(data, model):
    local = LOCAL._replace(lr=.02, momentum=.5)
    found = LoopData(data.x, data.y, data.client, local).descend(model, model.start)
    near(found, by_hand(data, model, model.start, .02, .5))


@pytest.mark.parametrize("momentum", [0., .9])
def test_a_pull_is_a_quadratic_term_of_the_loss(data, model, momentum):
    c = centre(model)
    found = data.descend(model, model.start, pull=[(c, .7, None)], momentum=momentum)
    near(found, by_hand(data, model, model.start, momentum=momentum, penalty=lambda w: .35 * ((w - c) ** 2).sum()))


def test_a_pull_on_a_block_leaves_the_rest(data, model):
    c, h = centre(model), model.h
    found = data.descend(model, model.start, pull=[(c[h], .7, h), (c, .2, None)])
    near(found, by_hand(data, model, model.start, penalty=lambda w: .35 * ((w - c)[h] ** 2).sum()
                        + .1 * ((w - c) ** 2).sum()))


@pytest.mark.parametrize("block, moving", [("head", lambda name: name.startswith("fc2")),
                                           ("base", lambda name: name.startswith("fc1")),
                                           ("fc1.weight", lambda name: name == "fc1.weight")])
def test_only_a_block_moves(data, model, block, moving):
    found = data.descend(model, model.start, only=model.block(block))
    near(found, by_hand(data, model, model.start, moving=moving))
    frozen = torch.ones(model.size, dtype=torch.bool)
    frozen[model.block(block)] = False
    assert torch.equal(found[frozen], model.start[frozen])


def test_clip_follows_every_step(data, model):
    low_high = (-.08, .09)
    w = model.start.clamp(*low_high)
    near(data.descend(model, w, clip=low_high), by_hand(data, model, w, clip=low_high))


def test_any_loss_of_the_flat_vector(data, model):
    def loss(w, x, y, scale):
        return model.loss(w, x, y) + .05 * scale * (w ** 2).sum()
    found = data.descend(loss, model.start, args=(torch.tensor(2.),))
    near(found, by_hand(data, model, model.start, penalty=lambda w: .1 * (w ** 2).sum()))


def test_walk_is_sgd_when_its_step_is(data, model):
    def step(state, grad):
        return (state[0] - data.lr * grad(model, state[0]),)
    near(data.scan(step, (model.start,))[0], by_hand(data, model, model.start))


def test_the_argument_is_left_alone(data, model):
    before = model.start.clone()
    found = data.descend(model, model.start)
    data.descend(model, found.clone())
    assert torch.equal(model.start, before)
    # The result is not a view of a buffer that is reused.
    assert torch.equal(found, data.descend(model, model.start))


def test_mean_loss_and_through_are_direct_computation(data, model):
    module = module_of(model, model.start)
    near(data.mean_loss(model, model.start), F.cross_entropy(module(data.x), data.y).detach())
    features = data.with_features(model.base, model.start[model.phi])
    near(features.x, module.relu(module.fc1(data.x)).detach())
    near(features.mean_loss(model.head, model.start[model.h]), data.mean_loss(model, model.start))


def test_head_training_on_features_is_training_with_frozen_features(data, model):
    features = data.with_features(model.base, model.start[model.phi])
    head = features.descend(model.head, model.start[model.h])
    near(head, by_hand(data, model, model.start, moving=lambda name: name.startswith("fc2"))[model.h])


def test_passes_draw_their_own_batches(data, model):
    assert data.with_batches(2, 0).descend(model, model.start).equal(data.descend(model, model.start))
    assert not data.with_batches(2, 1).descend(model, model.start).equal(data.descend(model, model.start))
    assert len(list(data.with_batches(3, 1).batches())) == 3 * 4


@pytest.mark.parametrize("momentum", [.5, .9])
def test_clip_and_momentum_go_together(data, model, momentum):
    low_high = (-.08, .09)
    w = model.start.clamp(*low_high)
    found = data.descend(model, w, clip=low_high, momentum=momentum)
    near(found, by_hand(data, model, w, clip=low_high, momentum=momentum))
    assert found.min() == torch.tensor(-.08) and found.max() == torch.tensor(.09)


def test_pulls_blocks_and_momentum_go_together(data, model):
    c, h = centre(model), model.h
    found = data.descend(model, model.start, lr=.03, pull=[(c[h], .7, h), (c, .2, None)], momentum=.8)
    near(found, by_hand(data, model, model.start, .03, .8, penalty=lambda w: .35 * ((w - c)[h] ** 2).sum()
                        + .1 * ((w - c) ** 2).sum()))
    part = data.descend(model, model.start, only=h, pull=[(c[h], .7, h)], momentum=.8)
    near(part, by_hand(data, model, model.start, momentum=.8, moving=lambda name: name.startswith("fc2"),
                       penalty=lambda w: .35 * ((w - c)[h] ** 2).sum()))


def test_steps_take_the_place_of_epochs(data, model):
    """Five of the eight batches are used, among them the fourth, which is short."""
    few = dataclasses.replace(data, local=LOCAL._replace(steps=5))
    assert [len(y) for _, y in few.batches()] == [10, 10, 10, 4, 10]
    near(few.descend(model, model.start), by_hand(few, model, model.start))
    assert (few.descend(model, model.start) - data.descend(model, model.start)).abs().max() > 1e-3


@pytest.mark.parametrize("momentum", [0., .8])
def test_the_spread_is_the_variance_of_the_batches_gradients(data, model, momentum):
    """It is that of the loss without pulls, over the block that moves, at the weights of each step."""
    c, h = centre(model), model.h
    for only in (None, h):
        w, spread = data.descend(model, model.start, only=only, momentum=momentum, spread=True)
        steps, gradients = len(list(data.batches())), []
        for step, (x, y) in enumerate(data.batches()):
            local = dataclasses.replace(data, local=LOCAL._replace(steps=step)) if step else None
            at = local.descend(model, model.start, only=only, momentum=momentum) if local else model.start
            module = module_of(model, at)
            F.cross_entropy(module(x), y).backward()
            gradient = torch.cat([p.grad.flatten() for p in module.parameters()])
            gradients.append(gradient if only is None else gradient[only])
        expected = torch.stack(gradients).double().var(0).sum()
        torch.testing.assert_close(spread.double(), expected, rtol=1e-4, atol=0)
        near(w, data.descend(model, model.start, only=only, momentum=momentum))
        assert steps == 8
    pulled = data.descend(model, model.start, pull=[(c, .7, None)], spread=True)
    near(pulled[0], data.descend(model, model.start, pull=[(c, .7, None)]))


def test_an_empty_block_stays(data, model):
    found, spread = data.descend(model, model.start, only=slice(7, 7), spread=True)
    assert torch.equal(found, model.start) and spread.shape == () and spread == 0
    again = data.descend(model, model.start, only=slice(7, 7))
    assert torch.equal(again, model.start) and again.data_ptr() != model.start.data_ptr()


def test_walk_goes_over_the_batches_of_other_streams_beside_its_own(data, model):
    """Each step has two gradients, on batches of streams 0 and 5; they are worked out by hand."""
    found = data.scan(lambda state, one, other: (state[0] - .05 * one(model, state[0]) - .02 * other(model, state[1]),
                                                 state[1]), (model.start, centre(model)), streams=(5,))
    w, still = model.start, centre(model)
    for (x, y), (u, v) in zip(data.batches(), dataclasses.replace(data, stream=5).batches(), strict=True):
        steps = []
        for at, inputs, labels in ((w, x, y), (still, u, v)):
            module = module_of(model, at)
            F.cross_entropy(module(inputs), labels).backward()
            steps.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
        w = w - .05 * steps[0] - .02 * steps[1]
    near(found[0], w)
    assert torch.equal(found[1], still) and found[1].data_ptr() != still.data_ptr()
