"""The looped engine, which all others are compared with, against torch.optim.SGD and direct computation."""
from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedmpi.clients import factors, plan
from fedmpi.clients.loop import LoopData
from fedmpi.models import flat
from fedmpi.models.build import as_input
from tests.federations import Digits, cnn, mlp

LOCAL = plan.Local(seed=3, round=2, batch=10, epochs=2, steps=None, lr=.05, momentum=0.)


@pytest.fixture(autouse=True, params=["small", "large"])
def size(request, monkeypatch):
    """The same for networks that are treated as large ones are."""
    if request.param == "large":
        monkeypatch.setattr(factors, "WORTH", 0)
        monkeypatch.setattr(flat, "LARGE", 0)
    return request.param


@pytest.fixture(scope="module")
def model():
    return mlp()


@pytest.fixture(scope="module")
def data():
    s = Digits((34,)).client(0)
    return LoopData(torch.from_numpy(s.x_train), torch.from_numpy(s.y_train), client=6, local=LOCAL)


def module_of(model, w):
    """Return a plain module with the parameters w; the mlp's lie in the order of the flat vector."""
    module = copy.deepcopy(model.module)
    vector_to_parameters(w.clone(), module.parameters())
    return module


def by_hand(data, model, w, lr=.05, momentum=0., penalty=None, moving=lambda name: True, clip=None):
    """Train with torch.optim.SGD and an ordinary backward pass."""
    module = module_of(model, w)
    module.requires_grad_(False)
    chosen = [p.requires_grad_() for name, p in module.named_parameters() if moving(name)]
    optimiser = torch.optim.SGD(chosen, lr, momentum)
    drawn = plan.draw(data.local, data.client, data.stream, data.n)
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
def test_descend_is_sgd(data, model, size, momentum):
    found = data.descend(model, model.start, momentum=momentum)
    sgd = by_hand(data, model, model.start, momentum=momentum)
    near(found, sgd)
    assert torch.equal(found, sgd) or size == "large"      # whose products are added up in another order
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
    near(data.walk(step, (model.start,))[0], by_hand(data, model, model.start))


def test_the_argument_is_left_alone(data, model):
    before = model.start.clone()
    found = data.descend(model, model.start)
    data.descend(model, found.clone())
    assert torch.equal(model.start, before)
    assert torch.equal(found, data.descend(model, model.start))      # not a view of a buffer that is reused


def test_mean_loss_and_through_are_direct_computation(data, model):
    module = module_of(model, model.start)
    near(data.mean_loss(model, model.start), F.cross_entropy(module(data.x), data.y).detach())
    features = data.through(model.base, model.start[model.phi])
    near(features.x, module.relu(module.fc1(data.x)).detach())
    near(features.mean_loss(model.head, model.start[model.h]), data.mean_loss(model, model.start))


def test_head_training_on_features_is_training_with_frozen_features(data, model):
    features = data.through(model.base, model.start[model.phi])
    head = features.descend(model.head, model.start[model.h])
    near(head, by_hand(data, model, model.start, moving=lambda name: name.startswith("fc2"))[model.h])


def test_passes_draw_their_own_batches(data, model):
    assert data.passes(2, 0).descend(model, model.start).equal(data.descend(model, model.start))
    assert not data.passes(2, 1).descend(model, model.start).equal(data.descend(model, model.start))
    assert len(list(data.passes(3, 1).batches())) == 3 * 4


def test_images_are_scaled_and_channels_first():
    model, s = cnn(), Digits((12,), image=True).client(0)
    data = LoopData(torch.from_numpy(s.x_train), torch.from_numpy(s.y_train), 0, LOCAL)
    x, _ = next(data.batches())
    assert x.shape == (10, 1, 8, 8) and x.is_contiguous(memory_format=torch.channels_last)
    index = plan.draw(LOCAL, 0, 0, 12).index[0]
    near(x[0, 0], (torch.from_numpy(s.x_train[index[0], :, :, 0]).float() / 255 - .5) / .5)
    module = copy.deepcopy(model.module)
    for p, v in zip(module.parameters(), model.split(model.start), strict=True):
        p.data = v.clone()
    near(data.mean_loss(model, model.start), F.cross_entropy(module(as_input(data.x)), data.y).detach())
