"""Per-FedAvg: its limit, transcriptions of both orders, and the step on a training batch before evaluation."""
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector

from fedmpi.engines.batch_plan import LocalTraining, draw_batches
from fedmpi.models.build import build_model
from tests.federations import TRAIN, Digits, Lab, OtherTests, method
from tests.methods.trial import ROUNDS, again, correct, evaluated, mean, near, run

# streams of batches
B1, B3, EVALUATED = 1, 2, 3


def gradient(ref, w, batch):
    x, y = batch
    module = ref.network(w)
    F.cross_entropy(module(x), y).backward()
    return parameters_to_vector(p.grad for p in module.parameters())


def hessian_times(ref, w, batch, v):
    """Return the exact product of the Hessian and v."""
    x, y = batch
    module = ref.network(w)
    parameters = list(module.parameters())
    first = torch.autograd.grad(F.cross_entropy(module(x), y), parameters, create_graph=True)
    return parameters_to_vector(torch.autograd.grad(parameters_to_vector(first) @ v, parameters)).detach()


def differences(ref, w, batch, v, delta=1e-3):
    """Return the product of the Hessian and v by differences."""
    return (gradient(ref, w + delta * v, batch) - gradient(ref, w - delta * v, batch)) / (2 * delta)


def nothing(ref, w, batch, v):
    return 0 * v


def meta(ref, t, i, w, alpha, beta, H):
    """Return w_i after one pass of meta-steps."""
    for b1, b2, b3 in zip(ref.batches(i, t, B1), ref.batches(i, t), ref.batches(i, t, B3), strict=True):
        g = gradient(ref, w - alpha * gradient(ref, w, b1), b2)
        w = w - beta * (g - alpha * H(ref, w, b3, g))
    return w


def per_fedavg(ref, alpha=None, beta=None, order=1, H=None):
    w, H = ref.start, H or (nothing, differences)[order - 1]
    for t in range(ROUNDS):
        who = ref.who(t)
        w = mean([meta(ref, t, i, w, alpha or ref.lr(t), beta or ref.lr(t), H) for i in who.ids], who.sizes)
    return w


def adapted(ref, i, w, alpha=None):
    """Return w after a step on the first batch of a draw of its own."""
    return w - (alpha or ref.lr(ROUNDS)) * gradient(ref, w, next(iter(ref.batches(i, ROUNDS, EVALUATED))))


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("share", [1., .6])
@pytest.mark.parametrize("settings", [{}, {"alpha": .2}, {"alpha": .3, "beta": .1}, {"alpha": .3, "order": 2}],
                         ids=str)
def test_per_fedavg_is_its_formula(settings, share):
    found = run("per_fedavg", share, **settings)
    ref = again(found)
    w = per_fedavg(ref, **settings)
    near(found.shared.w, w)
    for c in range(8):
        near(evaluated(found, c), adapted(ref, c, w, settings.get("alpha")))
        assert torch.equal(found.method.unadapted(found.shared, found.mine(c)), found.shared.w)


@pytest.mark.parametrize("order", [1, 2])
def test_without_a_step_to_the_client_it_is_sgd(order):
    """With alpha = 0 it is SGD with beta on the round's batches, and evaluation adapts nothing."""
    found = run("per_fedavg", alpha=0., order=order)
    near(found.shared.w, run("fedavg").shared.w, 1e-6)
    assert torch.equal(evaluated(found, 2), found.shared.w)
    slow = run("fedavg", train=replace(TRAIN, lr=.02, lr_decay=1.))
    near(run("per_fedavg", alpha=0., beta=.02, order=order).shared.w, slow.shared.w, 1e-6)


def test_the_defaults_are_not_the_limit():
    found, limit = run("per_fedavg"), run("per_fedavg", alpha=0.)
    assert (found.shared.w - limit.shared.w).abs().max() > 1e-3
    assert not np.array_equal(found.evaluate(ROUNDS)[:, 0], found.evaluate(ROUNDS)[:, 2])


@dataclass(frozen=True)
class Smooth:
    """A network that has a second derivative everywhere."""

    def build(self, shape, classes):
        return nn.Sequential(nn.Linear(*shape, 12), nn.Tanh(), nn.Linear(12, classes))


def test_the_differences_are_the_hessian():
    model = build_model(Smooth(), (64,), np.dtype("float32"), 10, seed=5)
    one, two = (Lab(method("per_fedavg", model, alpha=.3, order=order), Digits(), share=.6).go() for order in (1, 2))
    exact = per_fedavg(again(two), alpha=.3, H=hessian_times)
    near(two.shared.w, exact)
    assert (one.shared.w - exact).abs().max() > 1e-3


def test_the_rates_follow_the_learning_rate_unless_they_are_set():
    train = replace(TRAIN, lr=.2, lr_decay=1.)
    assert torch.equal(run("per_fedavg", train=train).shared.w, run("per_fedavg", alpha=.2, beta=.2).shared.w)


def test_the_batches_of_a_step_are_independent():
    """Each gradient has its own draw; with the same samples for all the result differs."""
    found = run("per_fedavg", rounds=1, participation=1., federation=Digits((30,)))
    local = LocalTraining(found.config.seed, 0, 10, 1, None, .05, 0.)
    drawn = [set(draw_batches(local, 0, stream, 30).index[0]) for stream in (0, B1, B3, EVALUATED)]
    assert all(a != b for k, a in enumerate(drawn) for b in drawn[:k])
    ref, w = again(found), found.method.model.start
    for b in ref.batches(0, 0):
        w = w - .05 * gradient(ref, w - .05 * gradient(ref, w, b), b)
    assert (found.shared.w - w).abs().max() > 1e-4


def test_the_step_before_evaluation_is_on_one_batch_of_training_samples():
    found, other = run("per_fedavg"), run("per_fedavg", federation=OtherTests(Digits()))
    for c in range(8):
        assert torch.equal(evaluated(found, c), evaluated(other, c))
    model = found.method.model
    epoch = found.apply(
        lambda shared, mine, data: data.with_batches(1, EVALUATED).descend(model, shared.w), [2, 3], ROUNDS)
    # This client has 3 samples, which are one batch.
    near(evaluated(found, 3), epoch[3])
    # This one has 57 samples.
    assert (evaluated(found, 2) - epoch[2]).abs().max() > 1e-3


def test_the_adapted_model_is_evaluated_and_the_global_one_beside_it():
    found = run("per_fedavg", rounds=ROUNDS - 1, alpha=.5)
    found.round(ROUNDS - 1, evaluates=True)
    table, ref = found.evaluate(ROUNDS), again(found)
    w = per_fedavg(ref, alpha=.5)
    assert table[:, 0, 1].tolist() == [correct(found, c, adapted(ref, c, w, .5)) for c in range(8)]
    assert table[:, 2, 1].tolist() == [correct(found, c, w) for c in range(8)]
    assert not np.any(table[:, 1])
