"""CGPFL: its formulas written a second time; whole models are clustered as k-means on the rows would do it."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.federations import apart
from tests.methods.lloyd import lloyd
from tests.methods.plain import again
from tests.methods.trial import ROUNDS, near, run


def client(ref, i, t, omega, lam, inner, lr_p):
    """Train a client as pFedMe does: theta by steps on the regularised loss of a batch, then omega towards theta."""
    theta = omega
    for x, y in ref.batches(i, t):
        for _ in range(inner):
            module = ref.network(theta)
            torch.nn.functional.cross_entropy(module(x), y).backward()
            gradient = torch.cat([p.grad.flatten() for p in module.parameters()])
            theta = theta - lr_p * ref.train.lr_decay ** t * (gradient + lam * (theta - omega))
        omega = omega - ref.lr(t) * lam * (omega - theta)
    return theta, omega


def written(ref, K, lam, inner, lr_p, a):
    Omega, context, used = torch.stack([ref.start] * K), {}, []
    theta = dict.fromkeys(range(len(ref.data)), ref.start)
    for t in range(ROUNDS):
        ids, sent = ref.who(t).ids, []
        for i in ids:
            omega = Omega[context[i]] if i in context else Omega[used or range(K)].mean(0)
            theta[i], omega = client(ref, i, t, omega, lam, inner, lr_p)
            sent.append(omega)
        new = [w for i, w in zip(ids.tolist(), sent, strict=True) if i not in context]
        begin = found_others(new, Omega, used)
        labels = lloyd(torch.stack(sent), begin, (ref.config.seed, t), ref.who(t).some_are_absent)
        used = sorted({*used, *labels.tolist()})
        for k in set(labels.tolist()):
            mean = ref.mean([w for w, label in zip(sent, labels, strict=True) if label == k])
            Omega[k] = (1 - a) * Omega[k] + a * mean
        context |= dict(zip(ids.tolist(), labels.tolist(), strict=True))
    return Omega, theta, context


def found_others(rows, Omega, used):
    """Return the contexts, where each that never had a member is the row of a new client farthest from all that had."""
    Omega = Omega.clone()
    for k in set(range(len(Omega))).difference(used) if used and rows else ():
        nearest = [min(float((row - Omega[j]).norm()) for j in used) for row in rows]
        Omega[k], used = rows[int(np.argmax(nearest))], [*used, k]
    return Omega


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("K, settings", [
    (3, {}), (4, {"lam": 3., "lr_p": .05, "a": .4}), (2, {"inner": 2, "lr_p": .1}), (1, {}), (7, {})])
def test_the_formulas(K, settings):
    found = run("cgpfl", K=K, **settings)
    s = {"lam": 15., "inner": 5, "lr_p": .01, "a": 1.} | settings
    Omega, theta, context = written(again(found), K, **s)
    near(found.shared.Omega, Omega)
    assert found.shared.context.tolist() == [context.get(i, -1) for i in range(8)]
    assert len(set(context.values())) > 1 or K == 1
    for c in range(8):
        near(found.mine(c).theta, theta[c])
        near(found.apply(found.method.personal, [c])[c], theta[c])


def test_the_pull_has_a_gradient():
    gaps = []
    for lam in (0., 2., 15.):
        lab = run("cgpfl", rounds=1, participation=1., lam=lam)
        gaps.append(float((lab.mine(2).theta - lab.method.model.start).norm()))
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < gaps[0]
    assert torch.equal(run("cgpfl", lam=0.).shared.Omega[0], run("cgpfl", rounds=0).shared.Omega[0])


def test_the_personal_model_is_not_the_one_that_is_sent():
    lab = run("cgpfl", rounds=0, participation=1.)
    lab.train(0)
    sent = lab.rows().omega.gather()
    for c in range(8):
        assert not np.allclose(lab.mine(c).theta, sent[c], atol=1e-4)
    assert apart(run("cgpfl").state(), run("cgpfl", a=.5).state()) > 1e-3


def test_a_client_receives_and_sends_one_model():
    lab = run("cgpfl", rounds=0)
    assert lab.method.traffic(lab.shared, lab.up) == (4 * 1210, 4 * 1210)
