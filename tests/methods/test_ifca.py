"""IFCA: its limits, an independent transcription, empty clusters, and planted groups."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from fedmpi.config.schema import resolve
from fedmpi.data.federation import Federation, prepare_federation
from tests.federations import Lab, apart, method
from tests.methods.reference import Reference
from tests.methods.trial import ROUNDS, near, run

SHARE = .6
bodies = pytest.mark.parametrize("shared_body", [False, True])


def models(lab):
    """Return the clusters' whole models (k, d)."""
    phi, parts = lab.shared
    return torch.stack([torch.cat([phi, part]) for part in parts])


def transcribed(ref, starts, shared_body, average):
    """Return the clusters' models, and who chose which in the last round."""
    cut, w = ref.cut if shared_body else 0, starts.double().numpy()
    w[:, :cut] = w[0, :cut]
    for t in range(ROUNDS):
        who, now = ref.who(t), torch.from_numpy(w).float()
        z = np.array([np.argmin([ref.loss(v, i) for v in now]) for i in who.ids])
        sent = torch.stack([ref.sgd(now[j], ref.batches(i, t), t) for i, j in zip(who.ids, z, strict=True)])
        sent, n = sent.double().numpy(), np.ones(len(z)) if average == "equal" else who.sizes
        for j in set(z):
            s = n[z == j].sum() / n.sum() if average == "share" else 1.
            w[j] = (1 - s) * w[j] + s * np.average(sent[z == j], 0, n[z == j])
        if cut:
            w[:, :cut] = np.average(sent[:, :cut], 0, n)
    return torch.from_numpy(w).float(), z


@pytest.mark.usefixtures("momentum")
@bodies
@pytest.mark.parametrize("average", ["equal", "mean", "share"])
def test_it_is_what_its_formulas_say(mlp, federation, shared_body, average):
    found = run("ifca", k=3, shared_body=shared_body, average=average)
    w, z = transcribed(Reference(mlp, federation, found.config), mlp.starts(3), shared_body, average)
    near(models(found), w)
    assert len(set(z)) > 1


@bodies
def test_one_cluster_is_fedavg(shared_body):
    plain, weighted = (run("fedavg", weights=w).shared.w for w in ("equal", "samples"))
    near(models(run("ifca", k=1, shared_body=shared_body))[0], plain, 1e-6)
    for average in ("mean", "share"):
        near(models(run("ifca", k=1, shared_body=shared_body, average=average))[0], weighted, 1e-6)
    assert (plain - weighted).abs().max() > 1e-3


def test_the_default_is_not_the_limit():
    assert apart(run("ifca").state(), run("ifca", k=1).state()) > 1e-3


@pytest.mark.parametrize("average", ["equal", "share"])
def test_a_cluster_that_nobody_chose_keeps_its_model(mlp, federation, average):
    lab = Lab(method("ifca", mlp, average=average), federation, share=SHARE)
    before = models(lab)
    chosen = set(lab.round(0).facts["clusters"])
    assert 0 < len(chosen) < 5
    assert [not torch.equal(a, b) for a, b in zip(models(lab), before, strict=True)] == [j in chosen for j in range(5)]


def test_a_client_is_evaluated_by_the_cluster_that_fits_its_training_data_best(mlp, federation):
    found = run("ifca")
    ref, w = Reference(mlp, federation, found.config), models(found)
    chosen = [int(np.argmin([ref.loss(v, c) for v in w])) for c in range(8)]
    for c, evaluated in found.apply(found.method.personal, range(8), ROUNDS).items():
        assert torch.equal(evaluated, w[chosen[c]])
    assert len(set(chosen)) > 1


def test_the_starts_are_independent(mlp, federation):
    w = models(Lab(method("ifca", mlp), federation))
    assert min((a - b).norm() for i, a in enumerate(w) for b in w[:i]) > 1


def test_what_is_sent_is_k_models_down_and_one_up(mlp, federation):
    """FedMHC's table II: 5 models of 4 bytes a parameter, and the number of the cluster."""
    lab, d, h = Lab(method("ifca", mlp, k=4), federation), mlp.size, mlp.size - mlp.h.start
    assert lab.method.traffic(lab.shared, lab.up) == (4 * 4 * d, 4 * d + 8)
    lab = Lab(method("ifca", mlp, k=4, shared_body=True), federation)
    assert lab.method.traffic(lab.shared, lab.up) == (4 * (d + 3 * h), 4 * d + 8)


@pytest.mark.parametrize("k, found", [(5, .7), (10, .9)])
def test_planted_groups(mlp, cache, k, found):
    """20 clients are in 5 groups of two classes. For k = 5 one start is best for no client, so two groups stay together
    (ARI .74), because a model is trained only for those who took it first. With spare starts the groups come apart."""
    federation = Federation(prepare_federation(resolve({"data": {
        "clients": 20, "cache": str(cache), "partition": "pathological"}}).data, 0))
    lab = Lab(method("ifca", mlp, k=k), federation, seed=0)
    ari = [adjusted_rand_score(federation.groups, lab.round(t).facts["clusters"]) for t in range(4)]
    assert ari == sorted(ari) and ari[0] < ari[-1] and found < ari[-1] <= 1
