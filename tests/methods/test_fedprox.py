"""FedProx: its limit, a transcription, and a pull that is in the gradient."""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.federations import TRAIN
from tests.methods.trial import ROUNDS, again, correct, mean, near, run


def fedprox(ref, mu, weighted=True):
    """Return w, and what the last participants sent."""
    w = ref.start
    for t in range(ROUNDS):
        who = ref.who(t)
        sent = {i: ref.sgd(w, ref.batches(i, t), t, penalty=lambda v, c=w: mu / 2 * ((v - c) ** 2).sum())
                for i in who.ids}
        w = mean(sent.values(), who.sizes if weighted else None)
    return w, sent


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("share", [1., .6])
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_fedprox_is_its_formula(share, weights):
    found = run("fedprox", share, mu=.8, weights=weights)
    near(found.shared.w, fedprox(again(found), .8, weights == "samples")[0])


@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_without_pull_it_is_fedavg(weights):
    assert torch.equal(run("fedprox", mu=0., weights=weights).shared.w, run("fedavg", weights=weights).shared.w)


def test_the_default_is_not_fedavg():
    long = replace(TRAIN, epochs=10)
    assert (run("fedprox", train=long).shared.w - run("fedavg", train=long).shared.w).abs().max() > 1e-4


def test_a_stronger_pull_keeps_clients_closer_to_the_global_model():
    start = run("fedprox", rounds=0).shared.w
    gaps = [(run("fedprox", rounds=1, mu=mu).shared.w - start).norm() for mu in (0., .5, 5., 15.)]
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < gaps[0] / 2


def test_the_global_model_is_evaluated_and_the_local_one_right_after_training():
    found = run("fedprox", rounds=ROUNDS - 1, mu=.8)
    found.round(ROUNDS - 1, evaluates=True)
    table, (w, sent) = found.evaluate(ROUNDS), fedprox(again(found), .8)
    assert [row[1] for row in table[:, 0]] == [correct(found, c, w) for c in range(8)]
    assert {c: row[1] for c, row in enumerate(table[:, 1]) if row[0]} == {c: correct(found, c, w)
                                                                          for c, w in sent.items()}
