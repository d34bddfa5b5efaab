"""How FedGroup, CFL, IFCA, FeSEM, FedCPS and LCFed find groups, and what they report: small cases worked out by hand.

The methods' transcriptions share code with them, or training does not reach these cases."""
from __future__ import annotations

from math import hypot
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedmpi.methods import cfl, fedgroup
from tests.methods.hand import Client, bare, network, same, state, up, who

# FedGroup


def test_newcomers_join_the_group_of_the_same_direction_not_of_the_longest_update():
    m = bare("fedgroup", network([1., 1.]), K=3)
    shared = state("fedgroup", models=[[1., 1.]] * 3, directions=[[10., 0.], [.3, .4], [0., 0.]],
                   group=[-1, 2, -1, 0])

    def joined(number, step):
        return int(m.find_group(shared, Client(number, step)))
    assert joined(0, [1., 1.]) == 1      # inner products 10, .7; cosines .71, .99
    assert joined(2, [1., .1]) == 0 and joined(0, [-1., -1.]) == 0      # cosines -.71, -.99; the third group is empty
    assert joined(2, [-1., 1.]) == 1
    for number, known in ((1, 2), (3, 0)):      # a client with a group does not train for it
        client = Client(number, [1., 1.])
        assert int(m.find_group(shared, client)) == known and not client.calls
    mine, sent = m.client(shared, "kept", Client(2, [1., 1.]))
    assert mine == "kept" and sent.w.tolist() == [2., 2.] and int(sent.group) == 1
    assert m.personal(shared._replace(models=torch.eye(3)[:, :2]), None, Client(0, [1., 1.])).tolist() == [0., 1.]


def test_groups_are_found_from_cosines_with_the_first_singular_directions(monkeypatch):
    updates = torch.randn(6, 5, generator=torch.Generator().manual_seed(2)) * torch.arange(1, 7)[:, None]
    asked = []
    monkeypatch.setattr(fedgroup, "kmeans", lambda *a: asked.append(a) or SimpleNamespace(labels=None))
    bare("fedgroup", K=2).cluster_updates((updates @ updates.T).double(), 9)
    V = np.linalg.svd(updates.double().numpy())[2][:2]
    edc = (updates.double().numpy() @ V.T) / np.linalg.norm(updates.numpy(), axis=1)[:, None]
    np.testing.assert_allclose(asked[0][0].abs().numpy()[:, ::-1], abs(edc), atol=1e-6)
    assert asked[0][1:] == (2, None, (9, 0x6200))


def test_fedgroup_founds_groups_by_direction_and_averages_by_samples():
    m, models = bare("fedgroup", K=2), torch.ones(2, 2)
    shared = state("fedgroup", models=models, directions=models * 0, group=[0] * 5)
    first = who([0, 2, 3, 4], [1, 3, 2, 6], -1)
    found = m.server(shared, up(w=[[6., 1.], [2., 1.], [1., 4.], [1., 1.5]], group=[0, 0, 0, 0]), first)
    g = int(found.group[0])
    assert found.group.tolist() == [g, -1, g, 1 - g, 1 - g] and first.facts["k"] == 2
    assert first.facts["clusters"].tolist() == [g, g, 1 - g, 1 - g]
    same(found.models[g], [3., 1.])
    same(found.models[1 - g], [1., 2.125])
    same(found.directions[1 - g], [0., 1.125])
    turn = who([1, 2, 4], [2, 5, 6], 0)
    after = m.server(found, up(w=[[7., 7.], [9., 8.], [3., 3.]], group=[1 - g, g, 1 - g]), turn)
    assert after.group.tolist() == [g, 1 - g, g, 1 - g, 1 - g] and after.directions is found.directions
    same(after.models[g], [9., 8.])
    same(after.models[1 - g], [4., 4.])
    assert turn.facts["clusters"].tolist() == [1 - g, g, 1 - g] and turn.facts["k"] == 2


# CFL


@pytest.mark.parametrize("mean, largest, t, members, relative, unit, splits", [
    (.3, .9, 5, 3, False, 1., True), (.4, .9, 5, 3, False, 1., False), (.3, .8, 5, 3, False, 1., False),
    (.3, .9, 4, 3, False, 1., False), (.3, .9, 6, 3, False, 1., True), (.3, .9, 5, 2, False, 1., False),
    (.3, .9, 5, 3, True, 2., False), (.79, 1.7, 5, 3, True, 2., True), (.81, 1.7, 5, 3, True, 2., False),
    (.3, .9, 5, 3, False, 2., True), (.5, .7, 5, 3, False, 1., False)])
def test_cfl_splits_where_the_mean_is_small_and_one_update_large(mean, largest, t, members, relative, unit, splits):
    m = bare("cfl", eps1=.4, eps2=.8, after=5, relative=relative)
    norms = torch.full((members,), .05, dtype=torch.float64)
    norms[1] = largest
    assert m.should_split(mean, norms, torch.tensor(unit), t) is splits


def test_cosines_of_updates_follow_from_their_inner_products():
    rows = torch.tensor([[3., 0.], [0., 2.], [1., 1.], [0., 0.]], dtype=torch.float64)
    r = .5 ** .5
    same(cfl.cosines_from_gram(rows @ rows.T), [[1., 0., r, 0.], [0., 1., r, 0.], [r, r, 1., 0.], [0., 0., 0., 0.]])


def parted(M=3, t=2, unit=0., decay=1., **settings):
    """Return the server's result if client 3 of 0, 1, 3 and 5 moves against the others."""
    defaults, turn = {"eps1": .5, "eps2": 1.0, "after": 2, "relative": False}, who([0, 1, 3, 5], [1, 2, 3, 4], t, decay)
    m = bare("cfl", M=M, **defaults | settings)
    dW = torch.tensor([[1., 0.], [.9, .2], [-1., 0.], [1., .1]])
    shared = state("cfl", models=[[1., 0.]] + [[7., 7.]] * (M - 1), cluster=[0] * 6, count=1, unit=unit)
    return m.server(shared, up(w=dW + shared.models[0], norm=dW.norm(dim=1)), turn), turn


def test_a_split_of_cfl_goes_by_client_numbers_and_moves_no_model():
    found, turn = parted()
    assert found.cluster.tolist() == [0, 0, 0, 1, 0, 0] and int(found.count) == 2
    same(found.models, [[1., 0.], [1., 0.], [7., 7.]])
    same(found.unit, 1.0049876)
    assert turn.facts["clusters"].tolist() == [0, 0, 1, 0] and turn.facts["k"] == 3
    assert turn.facts["clusters_found"] == 2      # measured for the cluster that was split
    same(turn.facts["mean_update"], [(.475 ** 2 + .075 ** 2) ** .5])
    far = [(.525, -.075), (.425, .125), (-1.475, -.075), (.525, .025)]      # from the mean update, before the split
    assert turn.facts["distance"] == pytest.approx(np.mean([hypot(*v) for v in far]))
    for settings in ({"M": 1}, {"t": 1}, {"eps1": .4}, {"eps2": 1.1}):
        plain, turn = parted(**settings)
        assert not plain.cluster.any() and int(plain.count) == 1
        same(plain.models[0], [1.475, .075])
        assert turn.facts["clusters"].tolist() == [0] * 4


@pytest.mark.parametrize("unit, decay, eps1, eps2, splits", [
    (4., 1., .5, .2, True), (4., 1., .1, .2, False), (4., 1., .5, .3, False),      # norms .48 and 1.005 in units of 4
    (4., .25, .5, .9, True), (4., .25, .4, .9, False), (4., .25, .5, 1.1, False),      # a quarter of the rate: of 1
    (0., .5, .5, .9, True), (0., .5, .4, .9, False)])      # the first round, in which the rate may still grow
def test_relative_thresholds_of_cfl_go_with_the_learning_rate(unit, decay, eps1, eps2, splits):
    found, _ = parted(unit=unit, decay=decay, relative=True, eps1=eps1, eps2=eps2)
    assert int(found.count) == 1 + splits
    assert float(found.unit) == pytest.approx(unit or 1.0049876 / decay)


def test_one_cluster_of_cfl_is_split_by_its_own_updates_alone():
    """Neither cluster is split: cluster 0 has small updates that disagree, cluster 1 a large one that agrees."""
    m, turn = bare("cfl", M=4, eps1=.4, eps2=.8, after=0, relative=False), who(range(6), [1] * 6)
    dW = torch.tensor([[.1, 0.], [-.1, 0.], [.1, .1], [2., 0.], [1., 0.], [3., 0.]])
    shared = state("cfl", models=[[1., 1.], [5., 5.], [7., 7.], [8., 8.]], cluster=[0, 0, 0, 1, 1, 1], count=2, unit=9.)
    w = dW + shared.models[shared.cluster]
    found = m.server(shared, up(w=w, norm=dW.norm(dim=1)), turn)
    same(turn.facts["mean_update"], [2 ** .5 / 30, 2.])
    same(turn.facts["largest_update"], [2 ** .5 / 10, 3.])
    small = hypot(2, -1) / 30, hypot(-4, -1) / 30, hypot(2, 2) / 30      # from (.1, .1) / 3
    assert turn.facts["distance"] == pytest.approx((sum(small) + 0 + 1 + 1) / 6)
    assert turn.facts["clusters_found"] == int(found.count) == 2 and found.cluster.tolist() == [0, 0, 0, 1, 1, 1]
    same(found.models, [[1 + .1 / 3, 1 + .1 / 3], [7., 5.], [7., 7.], [8., 8.]])
    assert float(found.unit) == 9


def test_a_client_of_cfl_trains_its_clusters_model_and_tells_the_norm():
    shared = state("cfl", models=[[0., 0.], [4., 4.]], cluster=[0, 1], count=2, unit=1.)
    mine, sent = bare("cfl", network([0., 0.])).client(shared, "kept", Client(1, [3., -4.]))
    assert mine == "kept" and sent.w.tolist() == [7., 0.] and float(sent.norm) == 5
    assert bare("cfl").personal(shared, None, Client(1)).tolist() == [4., 4.]


# IFCA and FeSEM


def test_a_client_of_ifca_takes_the_cluster_of_least_loss():
    m, parts = bare("ifca", network([0., 0., 0.], phi=1), k=3), [[9., 9., 9.], [1., 2., 3.], [1., 2., 4.]]
    shared = state("ifca", phi=torch.zeros(0), parts=parts)
    client = Client(step=[1., 1., 1.], loss=lambda w: float((w - torch.tensor([1., 2., 3.4])).norm()))
    mine, sent = m.client(shared, "kept", client)
    assert mine == "kept" and int(sent.z) == 1 and sent.w.tolist() == [2., 3., 4.]
    assert m.personal(shared, None, client).tolist() == parts[1]
    assert m.find_start_model(shared, None, sent._replace(z=torch.tensor(2)), client).tolist() == parts[2]
    m = bare("ifca", network([0., 0., 0.], phi=1), k=3, shared_body=True)
    shared = state("ifca", phi=[5.], parts=[[9., 9.], [1., 2.], [3., 4.]])
    client = Client(step=[0., 0., 0.], loss=lambda w: -float(w.sum()))
    assert m.client(shared, None, client)[1].w.tolist() == [5., 9., 9.]
    assert client.calls[0] == ("with_features", ("base", [5.]))


@pytest.mark.parametrize("average, parts, phi", [
    ("equal", [[2., 2.], [4., 8.], [5., 5.]], 8 / 3), ("mean", [[2.5, 2.5], [4., 8.], [5., 5.]], 3.25),
    ("share", [[1.25, 1.25], [7., 9.], [5., 5.]], 3.25)])
def test_ifcas_clusters_take_their_members_mean_or_a_step_of_their_share(average, parts, phi):
    w, z, sizes = [[1., 1.], [3., 3.], [4., 8.]], [0, 0, 1], [1, 3, 4]
    turn = who([0, 4, 5], sizes)
    shared = state("ifca", phi=torch.zeros(0), parts=[[0., 0.], [10., 10.], [5., 5.]])
    found = bare("ifca", k=3, average=average).server(shared, up(w=w, z=z), turn)
    same(found.parts, parts)
    assert found.phi is shared.phi and turn.facts["clusters"].tolist() == z and turn.facts["k"] == 3
    same(turn.facts["distance"], 2 * 2 ** .5 / 3)      # from the members' mean, wherever the cluster's model goes
    m, turn = bare("ifca", network([0., 0.], phi=1), k=3, average=average, shared_body=True), who([0, 4, 5], sizes)
    half = m.server(state("ifca", phi=[2.], parts=[[0.], [10.], [5.]]), up(w=w, z=z), turn)
    same(turn.facts["distance"], 2 / 3)      # over the clusters' own parts
    same(half.phi, [phi])
    same(half.parts, [row[1:] for row in parts])


@pytest.mark.parametrize("weights, centre", [("equal", (1., 1.)), ("samples", (.5, .75))])
def test_fesems_clients_go_to_the_nearest_centre_until_nobody_moves(weights, centre):
    m, turn = bare("fesem", network([0., 0.]), k=3, weights=weights), who([0, 2, 3, 5], [2, 1, 1, 7], 4)
    w = [[0., 1.], [0., 0.], [2., 1.], [9., 9.]] if weights == "samples" else [[0., 1.], [1., 0.], [2., 2.], [9., 9.]]
    shared = state("fesem", w=[[1., 1.], [7., 7.], [90., 90.]], of=[0, -1, 1, -1, -1, 1], n=3.)
    found = m.server(shared, up(w=w), turn)
    same(found.w, [list(centre), [9., 9.], [90., 90.]])
    assert found.of.tolist() == [0, -1, 0, 0, -1, 1] and float(found.n) == 11
    assert turn.facts["clusters"].tolist() == [0, 0, 0, 1] and (turn.facts["k"], turn.facts["iterations"]) == (3, 2)
    assert turn.facts["distance"] == pytest.approx(sum(hypot(x - centre[0], y - centre[1]) for x, y in w[:3]) / 4)


def test_fesem_moves_on_until_nobody_moves():
    """The client at 5.1 goes to the centre at 10, and goes back when the centres are at 8.55 and 4.25."""
    m, turn = bare("fesem", network([-1.]), k=2), who([0, 1, 2, 3], [1] * 4)
    found = m.server(state("fesem", w=[[0.], [10.]], of=[0, 0, 1, 1], n=1.), up(w=[[4.], [4.5], [5.1], [12.]]), turn)
    assert turn.facts["clusters"].tolist() == [0, 0, 0, 1] and turn.facts["iterations"] == 3
    same(found.w, [[13.6 / 3], [12.]])
    again = m.server(state("fesem", w=[[5.], [99.]], of=[0] * 4, n=1.), up(w=[[4.], [4.5], [5.1], [12.]]), turn)
    same(again.w, [[6.4], [99.]])      # k-means++ only before there are clusters


# FedCPS


def test_the_pull_of_fedcps_is_eq_3_within_its_bounds():
    m, shared = bare("fedcps", lam=.4, lam_max=5.), {"tau2": torch.tensor([4., 0.]), "scale": torch.tensor(8.)}

    def lam(j=0, n=2, sigma2=3., m=m, **changed):
        mine = SimpleNamespace(sigma2=torch.tensor(sigma2))
        return float(m.compute_pull(SimpleNamespace(**shared | changed), mine, j, n))
    assert lam() == 1.5 and lam(n=1) == 5 and lam(n=4) == .375      # 8 * 3 / (2^2 * 4)
    assert lam(n=4, m=bare("fedcps", lam=.4, lam_min=.4)) == pytest.approx(.4)
    assert [round(v, 6) for v in (lam(j=1), lam(sigma2=0.), lam(scale=torch.tensor(0.)))] == [.4, .4, .4]
    assert lam(sigma2=.5) == .25 and lam(scale=torch.tensor(.5), tau2=torch.tensor([.25])) == 1.5


def test_the_factor_of_fedcps_gives_a_median_client_lam():
    m, old = bare("fedcps", lam=.4), torch.tensor(77.)
    n, sigma2, tau2 = np.array([2, 4, 6]), np.array([1., 0., 3.]), np.array([2., 5., 4.])
    same(m.compute_scale(old, n, sigma2, tau2), .4 * 4 ** 2 * 3 / 2, 1e-5)
    same(m.compute_scale(old, n, sigma2, np.array([2., 5., 0.])), .4 * 4 ** 2 * 2 / 1, 1e-5)
    assert m.compute_scale(old, n, sigma2 * 0, tau2) is old and m.compute_scale(old, n, sigma2, tau2 * 0) is old


def test_fedcps_keeps_identities_and_counts_the_rounds_since_they_changed():
    m = bare("fedcps", network([0.] * 3), rear=SimpleNamespace(block=slice(1, 3)), k=3, stable=1)
    shared = state("fedcps", base=[0.], theta=[[0., 0.]] * 2 + [[8., 9.]], tau2=[0., 0., 5.], scale=0., ID=[1, -1, -1],
                   calm=0)
    told = [[.1, 1., 2.], [.2, 3., 4.], [.3, 5., 8.]]
    sent = up(w=[[1., 2., 3.], [4., 5., 6.], [10., 8., 9.]], j=[0, 1, 0], told=told)
    turn = who([0, 1, 2], [2, 4, 9])
    first = m.server(shared, sent, turn)
    same(first.base, [5.])
    same(first.theta, [[5., 6.], [5., 6.], [8., 9.]])
    same(first.tau2, [5., 4., 5.])
    same(first.scale, .1 * 4 ** 2 * 5 / 3, 1e-5)
    assert first.ID.tolist() == [0, 1, 0] and int(first.calm) == 0
    assert turn.facts["clusters"].tolist() == [0, 1, 0] and turn.facts["k"] == 3
    same(turn.each["lam"], [.1, .2, .3])
    second = m.server(first, sent, turn)
    third = m.server(second, sent, turn)
    assert (int(second.calm), int(third.calm)) == (1, 2)
    whole, part = 4 * (1 + 1), 4 * (2 + 1)
    assert [m.traffic(s, sent_one())[0] for s in (first, second, third)] == [whole + 3 * part] + [whole + part] * 2
    final = Client(2)
    assert int(m.choose_cluster(second, final)) == 0 and not final.calls


def sent_one():
    return state("fedcps", "Up", w=[0.] * 3, j=0, told=[0.] * 3)


# LCFed


def test_lcfed_assigns_by_cosine_and_moves_images_with_models():
    m, turn = bare("lcfed", network([0.] * 3, phi=1), K=3), who([0, 2, 3], [1, 5, 9], 1)
    shared = state("lcfed", Phi=[0.], Omega=[[0., 0., 0.], [1., 1., 1.], [2., 2., 2.]],
                   images=[[3., 0.], [0., 1.], [-1., -1.]], R=[0, -1, -1, 0, -1], M=torch.eye(3)[:2], known=1.)
    omega, images = [[1., 2., 3.], [4., 5., 6.], [10., 11., 12.]], [[2., 3.], [5., 1.], [1., 9.]]
    found = m.server(shared, up(omega=omega, image=images), turn)      # inner products 6, 3 | 15, 1 | 3, 9
    assert found.R.tolist() == [1, -1, 0, 1, -1]
    same(found.Phi, [5.])
    same(found.Omega, [[4., 5., 6.], [5.5, 6.5, 7.5], [2., 2., 2.]])
    same(found.images, [[5., 1.], [1.5, 6.], [-1., -1.]])
    facts = dict(turn.facts)
    assert facts.pop("clusters").tolist() == [1, 0, 1] and 0 <= facts.pop("seconds_similarity") < 60
    assert facts == {"k": 3, "similarity_multiply_adds": (3 * 3 + 3 + 3) * 2, "similarity_bytes": 24, "components": 2,
                     "bytes_once": 24}


def test_lcfeds_first_clusters_are_those_of_directions():
    m, turn = bare("lcfed", network([0.] * 3, phi=1), K=2), who([0, 1, 2, 3], [1] * 4)
    shared = state("lcfed", Phi=[0.], Omega=[[0.] * 3] * 2, images=[[0., 0.]] * 2, R=[-1] * 4, M=torch.zeros(2, 3),
                   known=1.)
    images = torch.tensor([[1., 0.], [5., .1], [0., 2.], [.1, 9.]])
    R = m.server(shared, up(omega=[[0.] * 3] * 4, image=images), turn).R.tolist()
    assert R[0] == R[1] != R[2] == R[3] and turn.facts["iterations"] == 2


def test_of_lcfeds_pre_round_the_components_stay():
    m, turn = bare("lcfed", network([0.] * 3, phi=1), K=2), who([0, 1, 2], [1] * 3, -1)
    shared = state("lcfed", Phi=[0.], Omega=[[1., 2., 3.]] * 2, images=[[0., 0.]] * 2, R=[-1] * 4, M=[[0.] * 3] * 2,
                   known=0.)
    found = m.server(shared, up(omega=[[5., 0., 1.], [-5., 0., 1.], [0., 0., 1.]], image=[[0., 0.]] * 3), turn)
    same(found.M.abs(), [[1., 0., 0.], [0., 0., 0.]])      # models that vary in one direction
    same(found.images.abs(), [[1., 0.]] * 2)
    assert float(found.known) == 1 and found.Omega is shared.Omega and not turn.facts
    before = Client(0, [1., 1., 1.])
    for s, kept in ((shared, 0.), (found, 1.)):
        mine, sent = m.client(s, state("lcfed", "Mine", omega=[0., 0., 0.]), before)
        assert mine.omega.tolist() == [kept] * 3 and sent.omega.tolist() == [1.] * 3
    (_, mu, block), (_, lam, phi) = before.calls[0][1]["pull"]
    assert (float(mu), block, lam, phi) == (0., None, .01, slice(0, 1))      # it has no cluster yet
    m.client(found._replace(R=torch.tensor([0, 1, 1, 1])), mine, before)
    (centre, mu, _), (Phi, lam, _) = before.calls[-1][1]["pull"]
    assert centre.tolist() == [1., 2., 3.] and Phi.tolist() == [0.] and float(mu) == pytest.approx(.1)
