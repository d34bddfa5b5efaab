"""BatchNorm's running statistics in a flat vector: only forward passes in training change them."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.engines import batchnorm
from tests.clients.normed import data_of, flat, lab, load, model_of, near, normed, train
from tests.federations import method


@pytest.fixture(scope="module")
def model():
    return model_of()


def test_the_vector_holds_parameters_and_statistics(model):
    parameters = sum(p.numel() for p in normed().parameters())
    assert model.size == parameters + 2 * (4 + 8) and sum(s.stop - s.start for s in model.buffers) == 24
    assert not [name for name in model.names if "num_batches" in name]
    assert batchnorm.gather_statistics(model.start, model.buffers).tolist() == [0.] * 4 + [1.] * 4 + [0.] * 8 + [1.] * 8
    assert (
        model.base.buffers == model.buffers
        and not model.head.buffers
        and model.block("1").stop < model.buffers[0].start
    )
    cut = model_of(head=("5", "6", "8"))
    assert len(cut.buffers) == 2 and cut.head.size == 17 * 8 + 4 * 8 + 90
    w = (torch.rand(cut.size) + .5) / 4
    x = torch.rand(3, 1, 8, 8)
    near(cut.head(w[cut.h], cut.base(w[cut.phi], x)), cut(w, x))
    near(cut(w, x), load(normed().eval(), cut, w)(x))


@pytest.mark.parametrize("n", [34, 21, 1])
@pytest.mark.parametrize("momentum", [0., .9])
def test_descend_is_sgd(n, momentum, model):
    data = data_of((n,), momentum=momentum)
    found = data.descend(model, model.start)
    near(found, flat(train(load(normed(), model, model.start), data, momentum), model))
    moved = (
        batchnorm.gather_statistics(found, model.buffers) - batchnorm.gather_statistics(model.start, model.buffers)
    ).abs()
    assert (moved.min() > 1e-4) == (n > 1)


@pytest.mark.parametrize("momentum", [0., .5])
def test_no_pull_moves_statistics(momentum, model):
    data, centre = data_of(momentum=momentum), model.start + .3

    def penalty(module):
        named = dict(module.named_parameters())
        return .35 * sum(((named[name] - c) ** 2).sum() for name, c in zip(
            model.names, model.split(centre), strict=True) if name in named)
    found = data.descend(model, model.start, pull=[(centre, .7, None)])
    near(found, flat(train(load(normed(), model, model.start), data, momentum, penalty), model))


@pytest.mark.parametrize("momentum", [0., .9])
def test_the_pull_of_fedmhc_to_a_moving_model_moves_no_statistics(momentum, model):
    """In a single step they follow from the batch and the first weights alone, whatever the pull."""
    data, found = data_of((8,), epochs=1, momentum=momentum), []
    for lam in (0., .7):
        kept, _ = method("fedmhc", model, anchor="local", lam=lam).train_side_by_side(
            model.start + .3, model.start, data)
        found.append(kept.theta)
    none, pulled = (batchnorm.gather_statistics(theta, model.buffers) for theta in found)
    assert torch.equal(none, pulled) and not torch.equal(*found)


def test_a_client_keeps_the_statistics_of_the_model_that_it_shares(model):
    """It puts them into the shared model, by whose features it chooses its group, and not into the personal one."""
    data = data_of()
    trained = method("fedmhc", model, anchor="local").train_side_by_side(model.start + .1, model.start, data)
    personal, shared = (batchnorm.gather_statistics(w, model.buffers) for w in (trained[0].theta, trained[1].w))
    (left,) = data.left.values()
    assert torch.equal(left, shared) and not torch.equal(left, personal)


def test_clipping_leaves_statistics_alone(model):
    data = data_of()
    found = data.descend(model, model.start, clip=(-.05, .05))
    still = batchnorm.gather_statistics(found, model.buffers)
    assert still.max() > .2 and found[:model.buffers[0].start].abs().max() <= .051


def test_walk_moves_the_statistics_too(model):
    data, start = data_of(), model.start.clone()

    def step(state, grad):
        return (state[0] - data.lr * grad(model, state[0]),)
    near(data.scan(step, (start,))[0], data.descend(model, start))
    assert torch.equal(start, model.start)


def test_evaluation_moves_nothing(model):
    data, w = data_of(), model.start + .1
    before = w.clone()
    data.descend(model, w)
    data.mean_loss(model, w), data.with_features(model.base, w[model.phi])
    assert torch.equal(w, before)
    run = lab("fedavg").go(2)
    np.testing.assert_array_equal(run.evaluate(2), run.evaluate(2))
