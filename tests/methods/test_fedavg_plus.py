"""FedAvg+ and FedProx+: their limits, an independent transcription, and the vote."""
from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedmpi.models.build import build_model
from fedmpi.models.nets import MLP
from tests.federations import TRAIN, Lab, method
from tests.methods.reference import Reference

ROUNDS, SHARE = 3, .6


def run(mlp, federation, name="fedavg_plus", train=None, **settings):
    return Lab(method(name, mlp, **settings), federation, share=SHARE, train=train).go(ROUNDS)


def near(one, other, atol=1e-5):
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


def transcribed(ref, w, k, mu):
    """Return the k-th model: FedAvg or FedProx from its own start, with its own batches."""
    for t in range(ROUNDS):
        who = ref.who(t)
        sent = [ref.sgd(w, ref.batches(i, t, stream=k), t, penalty=lambda v, c=w: mu / 2 * ((v - c) ** 2).sum())
                for i in who.ids]
        w = torch.from_numpy(np.average(torch.stack(sent).double().numpy(), 0, who.sizes)).float()
    return w


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("name, mu", [("fedavg_plus", 0.), ("fedprox_plus", 2.)])
def test_it_is_what_its_formulas_say(mlp, federation, name, mu):
    found = run(mlp, federation, name, K=3, **({"mu": mu} if mu else {}))
    ref = Reference(mlp, federation, found.config)
    for k, start in enumerate(mlp.starts(3)):
        near(found.shared.w[k], transcribed(ref, start, k, mu))


def test_the_vote_on_a_target_is_the_mean_output():
    model = build_model(MLP(hidden=6), (64,), "float32", 1, 3)
    x, w = torch.rand(5, 64), model.starts(3)
    near(method("fedavg_plus", model, K=3).predict(w, x), torch.stack([model(one, x) for one in w]).mean(0))
    assert model(w[0], x).unique().numel() == 5


@pytest.mark.parametrize("name", ["fedavg_plus", "fedprox_plus"])
@pytest.mark.parametrize("train", [{}, {"steps": 4}, {"epochs": 2}], ids=str)
def test_one_model_is_fedavg(mlp, federation, name, train):
    train = dataclasses.replace(TRAIN, **train)
    settings = {} if name == "fedavg_plus" else {"mu": 0.}
    one, plain = run(mlp, federation, name, train, K=1, **settings), run(mlp, federation, "fedavg", train)
    near(one.shared.w[0], plain.shared.w, 0 if name == "fedavg_plus" else 1e-6)
    ours, theirs = one.judge(ROUNDS), plain.judge(ROUNDS)
    np.testing.assert_array_equal(ours[:, 0, :3], theirs[:, 0, :3])
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_without_a_pull_fedprox_plus_is_fedavg_plus(mlp, federation):
    free, plain = run(mlp, federation, "fedprox_plus", mu=0.), run(mlp, federation)
    near(free.shared.w, plain.shared.w, 1e-6)
    # The default pull is weak, so its effect is proportional to it, which rounding errors would not be.
    default, ten = (run(mlp, federation, "fedprox_plus", **settings).shared.w - plain.shared.w
                    for settings in ({}, {"mu": .01}))
    assert 9.9 < ten.norm() / default.norm() < 10.1
    assert torch.cosine_similarity(ten.flatten(), default.flatten(), 0) > .99


def test_one_model_of_fedprox_plus_is_fedprox(mlp, federation):
    one, plain = (run(mlp, federation, name, mu=1.) for name in ("fedprox_plus", "fedprox"))
    near(one.shared.w[0], plain.shared.w, 1e-6)


def test_a_stronger_pull_moves_less(mlp, federation):
    moved = [float((run(mlp, federation, "fedprox_plus", K=2, mu=mu).shared.w - mlp.starts(2)).norm())
             for mu in (0., 1., 9.)]
    assert moved == sorted(moved, reverse=True) and moved[-1] < .7 * moved[0]


def test_plain_means_are_a_setting(mlp, federation):
    one, plain = run(mlp, federation, K=1, weights="equal"), run(mlp, federation, "fedavg", weights="equal")
    assert torch.equal(one.shared.w[0], plain.shared.w)


def test_the_vote_is_the_mean_of_probabilities(mlp, federation):
    found = run(mlp, federation, K=3)
    x = torch.from_numpy(federation.client(2).x_test)
    expected = torch.stack([mlp(w, x).softmax(1) for w in found.shared.w]).mean(0)
    near(found.method.predict(found.shared.w, x).exp(), expected, 1e-6)
    assert found.method.predict(1e4 * found.shared.w, x).isfinite().all()
