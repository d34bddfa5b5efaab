"""Ditto: its limits, a transcription, and a personal model that is never the global one."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.trial import ROUNDS, again, correct, evaluated, mean, near, run


def ditto(ref, lam):
    """Return w and every client's v."""
    w, v = ref.start, dict.fromkeys(range(len(ref.data)), ref.start)
    for t in range(ROUNDS):
        who = ref.who(t)
        for i in who.ids:
            v[i] = ref.sgd(v[i], ref.batches(i, t), t, penalty=lambda v, c=w: lam / 2 * ((v - c) ** 2).sum())
        w = mean([ref.sgd(w, ref.batches(i, t), t) for i in who.ids], who.sizes)
    return w, v


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("share", [1., .6])
def test_ditto_is_its_formula(share):
    found = run("ditto", share, lam=2.)
    w, v = ditto(again(found), 2.)
    near(found.shared.w, w)
    for c in range(8):
        near(found.mine(c).v, v[c])
        near(evaluated(found, c), v[c])


@pytest.mark.parametrize("lam", [0., 1., 7.])
def test_its_global_model_is_fedavg(lam):
    """They are equal bit for bit: personal models leave no trace in the global one."""
    assert torch.equal(run("ditto", lam=lam).shared.w, run("fedavg").shared.w)


def test_without_pull_it_is_local():
    free, alone = run("ditto", lam=0.), run("local")
    for c in range(8):
        assert torch.equal(free.mine(c).v, alone.mine(c).w)


def test_the_default_is_not_local():
    default, alone = run("ditto"), run("local")
    for c in default.who(ROUNDS - 1).ids:
        assert (default.mine(c).v - alone.mine(c).w).abs().max() > 1e-3


def test_a_stronger_pull_keeps_the_personal_model_closer():
    runs = [run("ditto", rounds=1, lam=lam) for lam in (0., .5, 5., 15.)]
    gaps = [(found.mine(2).v - found.method.model.start).norm() for found in runs]
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < gaps[0] / 2


def test_the_personal_model_is_the_only_one_evaluated():
    """Neither the global model nor w_i after local training is in the series, before or after."""
    found = run("ditto", rounds=ROUNDS - 1, participation=1.)
    found.round(ROUNDS - 1, evaluates=True)
    table, (w, v) = found.evaluate(ROUNDS), ditto(again(found), 1.)
    personal = [correct(found, c, v[c]) for c in range(8)]
    assert table[:, 0, 1].tolist() == personal != [correct(found, c, w) for c in range(8)]
    assert not np.any(table[:, 1:, 0])


def test_the_personal_model_is_kept_apart_from_what_is_sent():
    found = run("ditto", rounds=1)
    mine, up = found.apply(found.method.client, [2], 1)[2]
    assert mine.v.untyped_storage().data_ptr() != up.w.untyped_storage().data_ptr()
    assert (mine.v - up.w).abs().max() > 1e-3
