"""How methods serve clients that never took part: as each declares, in both engines, and as its formulas say.

Clients 6 and 7 of eight are held back. Plain PyTorch (reference.py) computes the models that they should get."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from fedmpi import registry
from fedmpi.clients.measures import measure_logits
from fedmpi.clients.newcomers import list_newcomers, refuse_newcomers
from fedmpi.config.schema import Data, resolve
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.errors import BadInput
from tests.clients.normed import model_of
from tests.federations import Lab, View, method
from tests.methods.reference import HEADS, Reference, fedah_mix, fedmhc_client
from tests.methods.table import NAMES, SHOWN, marked
from tests.methods.test_cgpfl import client as train_in_context
from tests.methods.test_pfedme import envelope
from tests.methods.trial import near

NEW, ROUNDS = [6, 7], 2
REFUSED = ("fedamp", "fedfomo")
SERVED = tuple(name for name in NAMES if name not in REFUSED)
# Methods that serve a new client like a client that has not taken part yet.
LIKE_CLIENTS = ("fedavg", "fedprox", "fedavg_plus", "fedprox_plus", "per_fedavg", "fedbabu", "fedsr", "fedcr", "fedala",
                "fedah", "fedmhc_ah", "pfedcam", "ifca", "ifca_cam")
# Settings with which the new clients' own choice matters.
MORE = {"fedcps": {"subset": 1., "k": 2}, "fesem": {"k": 3}, "ifca": {"k": 3}, "fedah": {"mix_start": .7},
        "fedmhc": {"M": 3}, "fedmhc_ah": {"M": 3}, "ifca_cam": {"warm_up": 1, "k": 3}, "fesem_cam": {"k": 3}}


class HeldBack(View):
    """A federation whose last two clients are new."""

    def __init__(self, federation):
        super().__init__(federation)
        self.sizes = federation.sizes[:6]


@pytest.fixture(scope="module")
def served(mlp, federation):
    """Laboratories after two rounds without the new clients, and what these are served with; computed once."""
    found = {}

    def get(name, **settings):
        key = name, repr(settings)
        if key not in found:
            settings = SHOWN.get(name, {}) | MORE.get(name, {}) | settings
            lab = Lab(method(name, mlp, **settings), HeldBack(federation), share=.6,
                      data=Data(clients=8, new_clients=2)).go(ROUNDS)
            before = lab.digest()
            table = lab.evaluate(ROUNDS)
            assert lab.digest() == before
            found[key] = lab, table, lab.apply(lab.method.serve_newcomer, NEW, ROUNDS)
        return found[key]
    return get


def test_every_method_says_how_or_refuses():
    for name in NAMES:
        cls = registry.find_class("methods", name)
        assert bool(cls.serves_newcomers) == (name not in REFUSED)
        config = resolve({"method": name, "data": {"new_clients": 2}, "train": {"lr": .01}})
        if name in REFUSED:
            with pytest.raises(BadInput, match=f"new_clients = 2: {cls.title} cannot serve new clients"):
                refuse_newcomers(config, config.method)


def test_running_statistics_of_its_own_are_no_newcomers():
    """The network says whose they are, also if its settings are a class of one's own."""
    config = resolve({"data": {"new_clients": 1}})
    with pytest.raises(BadInput, match="running_stats = local needs; set model.running_stats = average, or use G"):
        refuse_newcomers(config, config.method.with_model(model_of("local")))
    refuse_newcomers(config, config.method.with_model(model_of("average")))


@pytest.mark.parametrize("name", marked(*SERVED))
def test_newcomers_are_measured_by_what_they_are_served_with_and_change_nothing(name, served, mlp, federation):
    lab, table, _ = served(name)
    # at the rate of the first round
    weights = dict(lab.group.apply(lab.checked.serve_newcomer, NEW, lab.group.shared, ROUNDS, decays=False))
    assert table.shape[0] == 8 and table[NEW, 0, 0].all() and not table[NEW, 1:].any()
    for client in NEW:
        s = federation.client(client)
        x, y = torch.from_numpy(s.x_test), torch.from_numpy(s.y_test).long()
        np.testing.assert_allclose(
            table[client, 0, 1:], measure_logits(lab.method.predict(weights[client], x), y), rtol=1e-5)
    settings = SHOWN.get(name, {}) | MORE.get(name, {})
    without = Lab(method(name, mlp, **settings), HeldBack(federation), share=.6).go(ROUNDS)
    assert without.digest() == lab.digest()
    np.testing.assert_array_equal(without.evaluate(ROUNDS), table[:6])
    steps = [run.group.counter.take().tolist() for run in (lab, without)]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("name", marked(*SERVED))
def test_engines_serve_alike_and_a_newcomer_does_not_depend_on_others(name, served):
    lab, _, looped = served(name)
    vectorised = lab.apply(lab.method.serve_newcomer, NEW, ROUNDS, Vmap())
    for client in NEW:
        for one, other in zip(tree_leaves(looped[client]), tree_leaves(vectorised[client]), strict=True):
            assert one.isfinite().all() and (one - other).abs().max() < 1e-5
    for engine, together in ((Loop(), looped), (Vmap(), vectorised)):
        alone = lab.apply(lab.method.serve_newcomer, NEW[1:], ROUNDS, engine)
        assert all(torch.equal(a, b) for a, b in zip(tree_leaves(alone[7]), tree_leaves(together[7]), strict=True))


@pytest.mark.parametrize("name", marked(*LIKE_CLIENTS))
def test_some_serve_them_like_clients_that_have_not_taken_part(name, served):
    lab, _, found = served(name)
    like = lab.apply(lab.method.personal, NEW, ROUNDS)
    for client in NEW:
        for one, other in zip(tree_leaves(found[client]), tree_leaves(like[client]), strict=True):
            assert torch.equal(one, other)


def least(ref, client, models):
    """Return the model of least training loss."""
    return models[int(np.argmin([ref.loss(w, client) for w in models]))]


def trained(ref, client, w, *pulls):
    """Return w after the local steps of a round; pulls are (centre, strength, part of w)."""
    def penalty(v):
        return sum(strength / 2 * ((v[part] - centre) ** 2).sum() for centre, strength, part in pulls)
    return ref.sgd(w, ref.batches(client, ROUNDS), ROUNDS, penalty=penalty if pulls else None)


def tune_head(ref, client, phi, **batches):
    w = torch.cat([phi, ref.start[ref.cut:]])
    return ref.sgd(w, ref.batches(client, ROUNDS, **batches), ROUNDS, moving=lambda name: name in HEADS)


ALL = slice(None)


def fedmhc(ref, c, shared, m):
    w = least(ref, c, [torch.cat([shared.phi, h]) for h in shared.heads])
    if m.anchor == "local":
        return fedmhc_client(ref, c, ROUNDS, w, w, m.lam, "local")[1]
    return trained(ref, c, w, (w, m.lam, ALL))


def lcfed(ref, c, shared, m):
    image = shared.M @ trained(ref, c, ref.start, (shared.Phi, m.lam, slice(ref.cut)))
    Omega = shared.Omega[int(torch.cosine_similarity(shared.images, image[None]).argmax())]
    return trained(ref, c, Omega, (Omega, m.mu, ALL), (shared.Phi, m.lam, slice(ref.cut)))


def fesem(ref, c, shared, m):
    theta = trained(ref, c, shared.w.mean(0))
    return shared.w[int((shared.w - theta).norm(dim=1).argmin())]


def fedcps(ref, c, shared, m):
    theta = least(ref, c, [torch.cat([shared.base, part]) for part in shared.theta])
    return trained(ref, c, theta, (theta, m.lam, ALL))


def cgpfl(ref, c, shared, m):
    _, omega = train_in_context(ref, c, ROUNDS, shared.Omega.mean(0), m.lam, m.inner, m.lr_p)
    nearest = shared.Omega[int((shared.Omega - omega).norm(dim=1).argmin())]
    return train_in_context(ref, c, ROUNDS, nearest, m.lam, m.inner, m.lr_p)[0]


def fedgroup(ref, c, shared, m):
    dW = trained(ref, c, ref.start) - ref.start
    return shared.models[int(torch.cosine_similarity(shared.directions, dW[None]).argmax())]


def fedah(ref, c, shared, m):
    h = ref.start[ref.cut:]
    hhat, _ = fedah_mix(ref, c, ROUNDS, shared.w, h, torch.full_like(h, m.mix_start), m.mix_lr)
    return torch.cat([shared.w[:ref.cut], hhat])


FORMULAS = {
    "local": lambda ref, c, shared, m: trained(ref, c, ref.start),
    "ditto": lambda ref, c, shared, m: trained(ref, c, shared.w, (shared.w, m.lam, ALL)),
    "lg_fedavg": lambda ref, c, shared, m: trained(ref, c, torch.cat([ref.start[:ref.cut], shared.h])),
    "fedper": lambda ref, c, shared, m: tune_head(ref, c, shared.phi),
    "fedrep": lambda ref, c, shared, m: tune_head(ref, c, shared.phi, stream=2, epochs=m.head_epochs),
    "ifca": lambda ref, c, shared, m: least(ref, c, shared.parts),
    "cfl": lambda ref, c, shared, m: least(ref, c, shared.models[:int(shared.count)]),
    "pfedme": lambda ref, c, shared, m: envelope(ref, ROUNDS, c, shared.w, m.lam, m.K, m.lr_p)[1],
    "fedmhc": fedmhc, "lcfed": lcfed, "fesem": fesem, "fedcps": fedcps, "cgpfl": cgpfl, "fedgroup": fedgroup,
    "fedah": fedah}


@pytest.mark.parametrize("name, settings", [
    *((name, {}) for name in FORMULAS), ("fedmhc", {"anchor": "local"}), ("fedmhc", {"lam": 2.})])
def test_newcomers_are_served_by_the_formulas(name, settings, served):
    lab, _, found = served(name, **settings)
    ref = Reference(lab.method.model, lab.federation.original, lab.config)
    for client in NEW:
        near(found[client], FORMULAS[name](ref, client, lab.shared, lab.method), 2e-5)


def test_they_are_all_served_by_a_formula_or_like_clients():
    assert {*FORMULAS, *LIKE_CLIENTS, "fesem_cam"} == {*SERVED}


def test_cam_serves_the_global_model_and_what_the_clustered_method_serves(served):
    """While the global model warms up alone, it is served alone."""
    lab, _, found = served("fesem_cam")
    for client in NEW:
        g, centre = found[client]
        assert torch.equal(g, lab.shared.g) and any(torch.equal(centre, w) for w in lab.shared.w)
    lab, _, found = served("ifca_cam", warm_up=5)
    assert all(len(weights) == 1 and torch.equal(weights[0], lab.shared.g) for weights in found.values())


def serve(lab, shared, function=None) -> dict:
    """Return the models of the new clients for another state of the server, or the results of a function."""
    group = lab.group
    local = group.plan_training(ROUNDS)
    return dict(group.engine.apply(function or lab.method.serve_newcomer, NEW, shared, group, local))


def test_cam_looks_for_the_centre_beside_the_global_model(served):
    """Training beside g leads to one centre and training alone to another one; it starts from their mean."""
    lab, _, _ = served("fesem_cam")
    net, start = lab.method.model, lab.shared.w.mean(0)

    def train(shared, mine, data):
        beside = data.with_added_logits(net, shared.g)
        return torch.stack([beside.descend(net, start), data.descend(net, start)])
    for client, (beside, alone) in serve(lab, lab.shared, train).items():
        w = torch.stack([beside, alone, 3 * start - beside - alone])
        near(serve(lab, lab.shared._replace(w=w))[client][1], beside)
        assert (beside - alone).norm() > 1e-3


def test_cfl_serves_no_model_that_is_not_in_use(served):
    lab, _, _ = served("cfl")
    better = serve(lab, lab.shared, lambda shared, mine, data: data.descend(lab.method.model, shared.models[0]))
    for client in NEW:
        models = lab.shared.models.clone()
        models[1] = better[client]
        for count in (1, 2):
            shared = lab.shared._replace(models=models, count=torch.tensor(count))
            assert torch.equal(serve(lab, shared)[client], models[count - 1])


def test_lcfed_compares_directions_and_not_lengths(served):
    """A long image with a larger inner product but a smaller cosine is not the nearest."""
    lab, _, _ = served("lcfed")
    ref, Phi = Reference(lab.method.model, lab.federation.original, lab.config), lab.shared.Phi
    for client in NEW:
        image = lab.shared.M @ trained(ref, client, ref.start, (Phi, lab.method.lam, slice(ref.cut)))
        aside = torch.zeros_like(image)
        aside[0], aside[1] = -image[1], image[0]
        shared = lab.shared._replace(images=torch.stack([100 * image + 200 * aside, image]))
        near(serve(lab, shared)[client], lcfed(ref, client, shared, lab.method), 2e-5)
        assert torch.cosine_similarity(shared.images, image[None]).argmax() == 1


def test_ranks_that_host_clients_take_new_ones_in_turn():
    homes = np.array([1, 3, 3, 1, 1])
    assert [list_newcomers(homes, 5, rank) for rank in range(4)] == [[], [5, 7, 9], [], [6, 8]]
    assert list_newcomers(np.zeros(3, int), 2, 0) == [3, 4] and list_newcomers(homes, 0, 1) == []
