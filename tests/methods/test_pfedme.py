"""pFedMe: a transcription, its limits, and a personal model that is kept apart from the one that is sent."""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

from fedmpi.errors import BadInput
from tests.federations import TRAIN, method
from tests.methods.trial import ROUNDS, again, correct, evaluated, mean, near, network, run


def pfedme(ref, lam=15., K=5, lr_p=.01, beta=1.):
    """Return w, every client's theta, and w_i of the last participants (algorithm 1)."""
    w, theta = ref.start, dict.fromkeys(range(len(ref.data)), ref.start)
    for t in range(ROUNDS):
        who, sent = ref.who(t), {}
        for i in who.ids:
            sent[i], theta[i] = envelope(ref, t, i, w, lam, K, lr_p)
        w = (1 - beta) * w + beta * mean(sent.values(), who.sizes)
    return w, theta, sent


def envelope(ref, t, i, w, lam, K, lr_p):
    theta = w
    for x, y in ref.batches(i, t):
        for _ in range(K):
            module = ref.network(theta)
            v = parameters_to_vector(module.parameters())
            (F.cross_entropy(module(x), y) + lam / 2 * ((v - w) ** 2).sum()).backward()
            theta = theta - lr_p * ref.train.lr_decay ** t * parameters_to_vector(p.grad for p in module.parameters())
        w = w - ref.lr(t) * lam * (w - theta)
    return w, theta


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("share", [1., .6])
@pytest.mark.parametrize("settings", [{}, {"beta": .4}, {"beta": 1.5, "K": 1}, {"lam": 3., "lr_p": .05, "K": 2}],
                         ids=str)
def test_pfedme_is_its_formula(settings, share):
    found = run("pfedme", share, **settings)
    w, theta, _ = pfedme(again(found), **settings)
    near(found.shared.w, w)
    for c in range(8):
        near(found.mine(c).theta, theta[c])
        near(evaluated(found, c), theta[c])


def test_without_pull_the_global_model_never_moves():
    """theta is trained from the global model, with K steps per batch."""
    found = run("pfedme", lam=0., K=3, lr_p=.05)
    ref = again(found)
    assert torch.equal(found.shared.w, ref.start)
    last = {i: t for t in range(ROUNDS) for i in found.who(t).ids}
    for i, t in last.items():
        repeated = (batch for batch in ref.batches(i, t) for _ in range(3))
        theta = ref.start
        for batch in repeated:
            # lr and lr_p are equal here and decay alike.
            theta = ref.sgd(theta, [batch], t)
        near(found.mine(i).theta, theta)


def test_the_defaults_are_not_the_limits():
    default = run("pfedme")
    moved = default.shared.w - default.method.model.start
    assert moved.abs().max() > 1e-3
    for other in (run("pfedme", lam=5.), run("pfedme", K=1), run("pfedme", beta=.5)):
        assert (other.shared.w - default.shared.w).abs().max() > 1e-4


def test_a_stronger_pull_keeps_theta_closer_to_the_global_model():
    gaps = []
    for lam in (0., 15., 60., 150.):
        found = run("pfedme", rounds=0, lam=lam, train=replace(TRAIN, lr=.005))
        mine, up = found.apply(found.method.client, [2])[2]
        gaps.append(float((mine.theta - up.w).norm()))
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < gaps[0] / 3


def test_the_personal_model_is_another_one_than_the_copy_that_is_sent():
    found = run("pfedme", rounds=1)
    mine, up = found.apply(found.method.client, [2], 1)[2]
    assert mine.theta.untyped_storage().data_ptr() != up.w.untyped_storage().data_ptr()
    assert (mine.theta - up.w).abs().max() > 1e-4
    assert (mine.theta - found.shared.w).abs().max() > 1e-4


def test_theta_is_evaluated_and_after_training_what_was_sent():
    found = run("pfedme", rounds=ROUNDS - 1, lr_p=.1)
    found.round(ROUNDS - 1, evaluates=True)
    w, theta, sent = pfedme(again(found), lr_p=.1)
    table = found.evaluate(ROUNDS)
    personal = [correct(found, c, theta[c]) for c in range(8)]
    assert table[:, 0, 1].tolist() == personal != [correct(found, c, w) for c in range(8)]
    assert {c: table[c, 1, 1] for c in range(8) if table[c, 1, 0]} == {c: correct(found, c, sent[c]) for c in sent}
    assert [table[c, 1, 1] for c in sent] != [table[c, 0, 1] for c in sent]
    assert not table[:, 2:].any()


def test_steps_that_overshoot_are_refused():
    with pytest.raises(BadInput, match=r"^method.lr_p = 0.2: with lam = 15.0 .* must be below 2 / lam = 0.133$"):
        method("pfedme", network(), lr_p=.2)
