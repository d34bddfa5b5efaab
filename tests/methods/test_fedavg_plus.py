"""FedAvg+ and FedProx+: their limits, an independent transcription, and the vote."""
from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedmpi.models.build import build_model
from fedmpi.models.nets import MLP
from tests.federations import TRAIN, method
from tests.methods.reference import Reference
from tests.methods.trial import ROUNDS, near, run


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
    found = run(name, K=3, **({"mu": mu} if mu else {}))
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
def test_one_model_is_fedavg(name, train):
    train = dataclasses.replace(TRAIN, **train)
    settings = {} if name == "fedavg_plus" else {"mu": 0.}
    one, plain = run(name, train=train, K=1, **settings), run("fedavg", train=train)
    near(one.shared.w[0], plain.shared.w, 0 if name == "fedavg_plus" else 1e-6)
    ours, theirs = one.evaluate(ROUNDS), plain.evaluate(ROUNDS)
    np.testing.assert_array_equal(ours[:, 0, :3], theirs[:, 0, :3])
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_without_a_pull_fedprox_plus_is_fedavg_plus():
    free, plain = run("fedprox_plus", mu=0.), run("fedavg_plus")
    near(free.shared.w, plain.shared.w, 1e-6)
    # The default pull is weak, so its effect is proportional to it, which rounding errors would not be.
    default, ten = (run("fedprox_plus", **settings).shared.w - plain.shared.w
                    for settings in ({}, {"mu": .01}))
    assert 9.9 < ten.norm() / default.norm() < 10.1
    assert torch.cosine_similarity(ten.flatten(), default.flatten(), 0) > .99


def test_one_model_of_fedprox_plus_is_fedprox():
    one, plain = (run(name, mu=1.) for name in ("fedprox_plus", "fedprox"))
    near(one.shared.w[0], plain.shared.w, 1e-6)


def test_a_stronger_pull_moves_less(mlp):
    moved = [float((run("fedprox_plus", K=2, mu=mu).shared.w - mlp.starts(2)).norm())
             for mu in (0., 1., 9.)]
    assert moved == sorted(moved, reverse=True) and moved[-1] < .7 * moved[0]


def test_plain_means_are_a_setting():
    one, plain = run("fedavg_plus", K=1, weights="equal"), run("fedavg", weights="equal")
    assert torch.equal(one.shared.w[0], plain.shared.w)


def test_the_vote_is_the_mean_of_probabilities(mlp, federation):
    found = run("fedavg_plus", K=3)
    x = torch.from_numpy(federation.client(2).x_test)
    expected = torch.stack([mlp(w, x).softmax(1) for w in found.shared.w]).mean(0)
    near(found.method.predict(found.shared.w, x).exp(), expected, 1e-6)
    assert found.method.predict(1e4 * found.shared.w, x).isfinite().all()
