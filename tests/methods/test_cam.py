"""Clustered additive modelling: without a global model it equals the method that it modifies; transcriptions."""
from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

from fedmpi.engines.vmap import Vmap
from fedmpi.methods._cam import CAM, WARMUP_STREAM
from fedmpi.methods.fedmhc import FedMHC
from fedmpi.methods.fesem_cam import FeSEMCAM
from fedmpi.methods.ifca_cam import IFCACAM
from tests.federations import Lab, apart, method
from tests.methods.reference import Reference
from tests.methods.test_fesem import first, lloyd
from tests.methods.trial import ROUNDS, near, run

SHARE = .6


# Without g


class Silent:
    """Keeps the global model, and so its logits, at 0."""

    def init(self, n):
        shared, mine = super().init(n)
        return shared._replace(g=torch.zeros_like(shared.g)), mine

    def train_global(self, w, g, data):
        return g.clone()


@dataclass(frozen=True)
class SilentIFCA(Silent, IFCACAM):
    """IFCA-CAM without g."""


@dataclass(frozen=True)
class SilentFeSEM(Silent, FeSEMCAM):
    """FeSEM-CAM without g."""


@dataclass(frozen=True)
class FedMHCCAM(CAM, FedMHC):
    """CAM on another clustered method, which assigns by loss and declares nothing about its models."""


@dataclass(frozen=True)
class SilentFedMHC(Silent, FedMHCCAM):
    """FedMHC-CAM without g."""


PLAIN = [(SilentIFCA, "ifca", {"average": "equal"}), (SilentIFCA, "ifca", {"average": "share", "shared_body": True}),
         (SilentFeSEM, "fesem", {"keep": True, "lam": .5, "layers": ("fc2",), "weights": "samples"}),
         (SilentFeSEM, "fesem", {"keep": False, "lam": 0., "layers": (), "weights": "equal"}),
         (SilentFedMHC, "fedmhc", {"lam": .5})]


@pytest.mark.parametrize("silent, name, settings", PLAIN, ids=str)
def test_with_a_global_model_of_no_logits_it_is_what_it_modifies(mlp, federation, silent, name, settings):
    assert_is_what_it_modifies(mlp, federation, silent, name, settings)


def assert_is_what_it_modifies(mlp, federation, silent, name, settings):
    """States and the accuracy of every client are equal bit for bit."""
    found = Lab(silent(warm_up=0, **settings).with_model(mlp), federation, share=SHARE).go()
    plain = Lab(method(name, mlp, **settings), federation, share=SHARE).go()
    assert not found.shared.g.any()
    assert all(torch.equal(getattr(found.shared, field), v) for field, v in plain.shared._asdict().items())
    assert all(torch.equal(a, b) for c in range(8) for a, b in zip(found.mine(c), plain.mine(c), strict=True))
    np.testing.assert_array_equal(found.evaluate(ROUNDS)[:, 0], plain.evaluate(ROUNDS)[:, 0])


@pytest.mark.parametrize("cam, silent", [(IFCACAM, SilentIFCA), (FeSEMCAM, SilentFeSEM), (FedMHCCAM, SilentFedMHC)])
def test_with_one_it_is_not(mlp, federation, cam, silent):
    loud, quiet = (Lab(c(warm_up=0).with_model(mlp), federation, share=SHARE).go() for c in (cam, silent))
    assert apart(loud.state(), quiet.state()) > 1e-3
    assert not np.array_equal(loud.evaluate(ROUNDS), quiet.evaluate(ROUNDS))


def test_a_run_that_only_warms_up_says_so():
    assert IFCACAM(warm_up=5).list_oddities(6) == FeSEMCAM(warm_up=9).list_oddities(6) == []
    for warm_up in (6, 30):
        said, = IFCACAM(warm_up=warm_up).list_oddities(6)
        assert said.startswith(f"method.warm_up = {warm_up}: in all rounds = 6 FedAvg trains g alone")


# Transcriptions


def additive(ref, w, other, batches, t, penalty=lambda v: 0.):
    """Train w by SGD on the sum of the logits of w and of another model that stays as it is."""
    module, other = ref.network(w), ref.network(other)
    optimiser = torch.optim.SGD(module.parameters(), ref.lr(t), momentum=ref.train.momentum)
    for x, y in batches:
        with torch.no_grad():
            fixed = other(x)
        loss = F.cross_entropy(module(x) + fixed, y) + penalty(parameters_to_vector(module.parameters()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return parameters_to_vector(module.parameters()).detach()


@torch.no_grad()
def loss(ref, g, w, i):
    x, y = ref.data[i]
    return float(F.cross_entropy(ref.network(g)(x) + ref.network(w)(x), y))


def average(sent, n):
    return torch.from_numpy(np.average(torch.stack(sent).double().numpy(), 0, n)).float()


def ifca_cam(ref, starts, warm_up, average_):
    """Return g and the clusters' models (eqs. 2 to 9)."""
    *w, g = starts
    for t in range(ROUNDS):
        who, sent, members = ref.who(t), [], [[] for _ in w]
        for i, n in zip(who.ids, who.sizes, strict=True):
            if t < warm_up:
                sent.append(ref.sgd(g, ref.batches(i, t), t))
                continue
            k = int(np.argmin([loss(ref, g, v, i) for v in w]))
            theta = additive(ref, w[k], g, ref.batches(i, t), t)
            members[k].append((theta, n))
            sent.append(additive(ref, g, w[k], ref.batches(i, t), t))
        w = [moved(old, own, average_, who.sizes.sum()) for old, own in zip(w, members, strict=True)]
        g = average(sent, who.sizes)
    return g, torch.stack(w)


def moved(old, members, average_, n):
    """Return a cluster's next model, by eq. 6 or as a mean of its members."""
    if average_ == "share":
        return (old.double() + sum(m / n * (theta - old).double() for theta, m in members)).float()
    return average([theta for theta, _ in members], [m if average_ == "mean" else 1 for _, m in members]
                   ) if members else old


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("warm_up, settings", [(0, {}), (1, {}), (1, {"average": "share"}), (0, {"average": "equal"})])
def test_ifca_cam_is_what_its_formulas_say(mlp, federation, warm_up, settings):
    found = run("ifca_cam", k=3, warm_up=warm_up, **settings)
    g, w = ifca_cam(Reference(mlp, federation, found.config), mlp.starts(4), warm_up, settings.get("average", "mean"))
    near(found.shared.g, g)
    near(found.shared.parts, w)
    assert found.shared.round == ROUNDS


def warmed(ref, i, steps):
    """Train client i alone for so many steps, however many samples it has."""
    return ref.sgd(ref.start, islice(ref.batches(i, -1, stream=WARMUP_STREAM, epochs=steps), steps), 0)


def fesem_cam(ref, k, g, lam, warm_up, keep):
    """Return g, centres, clusters and theta (eqs. 11 to 15); the whole network is fully connected."""
    everybody, of = range(len(ref.data)), {}
    theta, w = dict.fromkeys(everybody, ref.start), np.array([ref.start.double().numpy()] * k)
    if warm_up:
        theta = {i: warmed(ref, i, 4 * warm_up) for i in everybody}
        of, w = clustered(theta, list(everybody), w, of, ref.federation.sizes, (ref.config.seed, 0))
    for t in range(ROUNDS):
        who, sent = ref.who(t), []
        for i in who.ids:
            centre, batches = torch.from_numpy(w[of[i]] if i in of else w.mean(0)).float(), list(ref.batches(i, t))
            began = theta[i] if keep else centre
            theta[i] = additive(ref, began, g, batches, t,
                                lambda v, c=centre, s=lam * (i in of): s / 2 * ((v - c) ** 2).sum())
            sent.append(additive(ref, g, began, batches, t))
        g = average(sent, who.sizes)
        of, w = clustered(theta, list(who.ids), w, of, who.sizes, (ref.config.seed, t + 1))
    return g, torch.from_numpy(w).float(), of, theta


def clustered(theta, ids, w, of, n, seed):
    x = torch.stack([theta[i] for i in ids]).double().numpy()
    labels = lloyd(x, w, n) if of else first(x, len(w), seed, n)
    w = np.array([np.average(x[labels == j], 0, n[labels == j]) if (labels == j).any() else w[j]
                  for j in range(len(w))])
    return of | dict(zip(ids, labels, strict=True)), w


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("warm_up", [0, 2])
def test_fesem_cam_is_what_its_formulas_say(mlp, federation, warm_up, keep):
    found = run("fesem_cam", k=3, warm_up=warm_up, warm_steps=4 if warm_up else None, lam=.5, keep=keep)
    g, w, of, theta = fesem_cam(Reference(mlp, federation, found.config), 3, mlp.starts(4)[3], .5, warm_up, keep)
    near(found.shared.g, g)
    near(found.shared.w, w)
    assert found.shared.of.tolist() == [of.get(i, -1) for i in range(8)] and len(set(of.values())) > 1
    for c in range(8 if keep else 0):
        near(found.mine(c).theta, theta[c])


def test_a_method_that_does_not_say_where_it_began_is_asked_for_what_it_is_evaluated_by(mlp, federation):
    """g of FedMHC-CAM is trained beside theta_i."""
    lab = Lab(FedMHCCAM(warm_up=0).with_model(mlp), federation)
    g = mlp.starts(2)[1]
    near(lab.shared.g, g, 0)
    ref, who = Reference(mlp, federation, lab.config), lab.round(0)
    near(lab.shared.g, average([additive(ref, g, ref.start, ref.batches(i, 0), 0) for i in who.ids], who.sizes))


def test_logits_of_several_models_add_up(mlp, federation):
    lab, (u, v, w) = Lab(method("fedavg", mlp), federation), mlp.starts(3)
    x, y = Reference(mlp, federation, lab.config).data[2]
    found = lab.apply(lambda shared, mine, data: data.with_added_logits(mlp, u).with_added_logits(mlp, v).mean_loss(
        mlp, w), [2])[2]
    near(found, F.cross_entropy(mlp(u, x) + mlp(v, x) + mlp(w, x), y), 1e-6)


# Warm-up


def test_warm_rounds_are_fedavg_for_g_alone(mlp, federation):
    lab = run("ifca_cam", rounds=2, warm_up=2)
    ref, w = Reference(mlp, federation, lab.config), mlp.starts(6)
    g = w[5]
    for t in range(2):
        who = ref.who(t)
        g = average([ref.sgd(g, ref.batches(i, t), t) for i in who.ids], who.sizes)
    near(lab.shared.g, g)
    assert torch.equal(lab.shared.parts, w[:5])
    lab.round(2)
    assert not torch.equal(lab.shared.parts, w[:5])


def test_while_g_warms_up_it_is_evaluated_alone(mlp, federation):
    x = torch.from_numpy(federation.client(2).x_test)
    lab = run("ifca_cam", rounds=1, warm_up=2)
    for t in (2, 3):
        weights = lab.apply(lab.method.personal, [2], t - 1)[2]
        assert len(weights) == t - 1
        near(lab.method.predict(weights, x), sum(mlp(w, x) for w in weights), 0)
        assert torch.equal(weights[0], lab.shared.g)
        lab.round(t - 1)


def test_right_after_its_training_g_is_evaluated_alone_while_it_warms_up(mlp, federation):
    lab = run("ifca_cam", rounds=1, warm_up=2)
    for alone in (True, False):
        mine, up = lab.apply(lab.method.client, [2], 2 - alone)[2]
        weights = lab.method.trained(lab.shared, mine, up)
        wanted = (up.theta0,) if alone else (lab.shared.g, up.w)
        assert [*map(id, weights)] == [*map(id, wanted)]
        lab.round(2 - alone)


def test_a_method_that_judges_nothing_right_after_training_does_not_with_g_either(mlp, federation):
    lab = Lab(FedMHCCAM(warm_up=0).with_model(mlp), federation)
    assert lab.method.trained(lab.shared, *lab.apply(lab.method.client, [2])[2]) is None


def test_clients_warm_up_alone_before_the_first_round(mlp, federation):
    """All clients take the same number of steps, though they have 1 to 57 samples in batches of 10."""
    lab = Lab(method("fesem_cam", mlp, k=3, warm_up=2, warm_steps=7, keep=True), federation, share=SHARE).open()
    ref = Reference(mlp, federation, lab.config)
    assert torch.equal(lab.shared.g, mlp.starts(4)[3]) and (lab.shared.of >= 0).all() and lab.shared.round == 0
    for c in range(8):
        near(lab.mine(c).theta, warmed(ref, c, 14))
    assert method("fesem_cam", mlp, warm_up=0).warm_up_participants(8, 0) is None
    assert method("ifca_cam", mlp).warm_up_participants(8, 0) is None


def test_a_client_is_evaluated_by_g_and_the_cluster_that_fits_best_beside_it(mlp, federation):
    """Its training data decide, and g is added: the cluster that fits best alone is another one."""
    lab = Lab(method("ifca_cam", mlp, warm_up=0), federation)
    lab.shared = lab.shared._replace(g=4 * lab.shared.g, parts=4 * lab.shared.parts)
    ref, (_, w, g, _), alone = Reference(mlp, federation, lab.config), lab.shared, []
    for c, (common, own) in lab.apply(lab.method.personal, range(8)).items():
        assert torch.equal(common, g) and torch.equal(own, w[np.argmin([loss(ref, g, v, c) for v in w])])
        alone.append(torch.equal(own, w[np.argmin([ref.loss(v, c) for v in w])]))
    assert not all(alone)


def test_what_clients_keep_rests_while_g_warms_up(mlp):
    lab = run("fesem_cam", warm="global", warm_up=4, keep=True)
    kept = [lab.mine(c).theta for c in range(8)]
    assert all(torch.equal(theta, mlp.start) for theta in kept)
    assert len({theta.data_ptr() for theta in kept}) == 8


@pytest.mark.parametrize("name", ["ifca_cam", "fesem_cam"])
@pytest.mark.parametrize("warm", ["global", "local"])
def test_both_warm_ups_in_both_engines(mlp, federation, name, warm):
    one, other = (Lab(method(name, mlp, warm=warm, warm_up=1), federation, engine, share=SHARE).go(2)
                  for engine in (None, Vmap()))
    assert apart(one.state(), other.state()) < 1e-5
    np.testing.assert_allclose(one.evaluate(2), other.evaluate(2), atol=1e-4)
