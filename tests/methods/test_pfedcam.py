"""pFedCAM as it is reconstructed: its formulas written a second time, its bytes, and one cluster."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.federations import apart
from tests.methods.lloyd import lloyd
from tests.methods.plain import again
from tests.methods.trial import ROUNDS, near, run


def logits(ref, i, t, Theta, s, lr, epochs):
    """Learn a client's logits by the chain rule, from the gradient of f at the mixture times each model."""
    for x, y in ref.batches(i, t, stream=1, epochs=epochs):
        a = s.softmax(0)
        module = ref.network(a @ Theta)
        F.cross_entropy(module(x), y).backward()
        slopes = Theta @ torch.cat([p.grad.flatten() for p in module.parameters()])
        s = s - lr * a * (slopes - a @ slopes)
    return s


def written(ref, K, lr, epochs):
    Theta, s = torch.stack([ref.start] * K), {i: torch.zeros(K) for i in range(len(ref.data))}
    for t in range(ROUNDS):
        ids, sent = ref.who(t).ids, []
        for i in ids:
            s[i] = logits(ref, i, t, Theta, s[i], lr, epochs)
            sent.append(ref.sgd(s[i].softmax(0) @ Theta, ref.batches(i, t), t))
        labels = lloyd(torch.stack(sent), Theta, (ref.config.seed, t), ref.who(t).some_are_absent)
        for k in set(labels.tolist()):
            members = [i for i, label in zip(ids, labels, strict=True) if label == k]
            Theta[k] = ref.mean([w for w, label in zip(sent, labels, strict=True) if label == k], members)
    return Theta, s


@pytest.mark.usefixtures("training")
@pytest.mark.parametrize("K, lr, epochs", [(3, 1., 1), (4, .3, 2), (7, 1., 1)])
def test_the_formulas(K, lr, epochs):
    found = run("pfedcam", K=K, interp_lr=lr, interp_epochs=epochs)
    ref = again(found)
    Theta, s = written(ref, K, lr, epochs)
    near(found.shared.Theta, Theta)
    assert max(float(v.abs().max()) for v in s.values()) > .01
    for c in range(8):
        near(found.mine(c).s, s[c])
        anew = logits(ref, c, ROUNDS, Theta, s[c], lr, epochs)
        near(found.apply(found.method.personal, [c], ROUNDS)[c], anew.softmax(0) @ Theta)


def test_one_cluster_is_fedavg():
    near(run("pfedcam", K=1).shared.Theta[0], run("fedavg").shared.w, 1e-6)
    assert apart(run("pfedcam", K=2).state(), run("pfedcam", K=2, interp_lr=0.).state()) > 1e-3


def test_a_client_prefers_the_model_that_suits_it():
    """One of the four models was trained on the client's own data."""
    lab = run("pfedcam", rounds=0)
    ref, Theta = again(lab), lab.shared.Theta.clone()
    Theta[2] = ref.sgd(ref.start, (b for t in range(20) for b in ref.batches(0, t)), 0)
    lab.shared = lab.shared._replace(Theta=Theta)
    s = lab.apply(lab.method.client, [0])[0][0].s
    assert int(s.argmax()) == 2 and s.softmax(0)[2] > .26


def test_a_client_receives_all_models_and_sends_one():
    """The FedMHC paper's table II counts five models with M = 4."""
    lab = run("pfedcam", rounds=0, K=4)
    assert lab.method.traffic(lab.shared, lab.up) == (4 * 4 * 1210, 4 * 1210)
