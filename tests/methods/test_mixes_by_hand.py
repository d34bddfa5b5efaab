"""What FedAMP and FedFomo mix, and the means of servers, with the reported facts: small cases worked out by hand."""
from __future__ import annotations

from math import hypot
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedmpi.comm import exact
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.methods import fedcr
from tests.federations import Lab
from tests.methods.hand import Client, Sent, bare, network, same, state, up, who
from tests.methods.trial import digits, run

# FedAMP and FedFomo


def test_attention_of_fedamp_by_hand():
    """The models are at 0, 1 and 3 on a line."""
    x = torch.tensor([[0.], [1.], [3.]], dtype=torch.float64)
    # alpha = .2, sigma = 2
    e = {d: float(np.exp(-d / 2)) * .1 for d in (1, 4, 9)}
    same(bare("fedamp", alpha=.2, sigma=2.).compute_attention(x @ x.T), [
        [1 - e[1] - e[9], e[1], e[9]], [e[1], 1 - e[1] - e[4], e[4]], [e[9], e[4], 1 - e[4] - e[9]]], 1e-12)
    f = {d: float(np.exp(-d)) for d in (1, 4, 9)}
    same(bare("fedamp", alpha=4., sigma=1.).compute_attention(x @ x.T), [
        [0., f[1] / (f[1] + f[9]), f[9] / (f[1] + f[9])], [f[1] / (f[1] + f[4]), 0., f[4] / (f[1] + f[4])],
        [4 * f[9], 4 * f[4], 1 - 4 * f[4] - 4 * f[9]]], 1e-12)
    # cosines 0, -1, 0
    v = torch.tensor([[2., 0.], [0., 5.], [-1., 0.]], dtype=torch.float64)
    a, b = .7 / (1 + np.exp(-3)), .7 / (1 + np.exp(3))
    same(bare("fedamp", form="heuristic", sigma=3., own=.3).compute_attention(v @ v.T), [
        [.3, a, b], [.35, .3, .35], [b, a, .3]], 1e-12)


def test_attention_of_fedamp_at_its_defaults_by_hand():
    """The models are at 0, 1 and 3 on a line. Squared distances are 1, 4 and 9, so sigma = 4 and alpha = 4 / 2."""
    x = torch.tensor([[0.], [1.], [3.]], dtype=torch.float64)
    e = {d: float(np.exp(-d / 4)) / 2 for d in (1, 4, 9)}
    same(bare("fedamp").compute_attention(x @ x.T), [
        [1 - e[1] - e[9], e[1], e[9]], [e[1], 1 - e[1] - e[4], e[4]], [e[9], e[4], 1 - e[4] - e[9]]], 1e-12)


def test_the_median_of_fedamp_leaves_out_models_at_the_start():
    """Three clients never took part and are at 0, two are at 1 and 3: sigma is the median of 1, 1, 1, 4, 9, 9, 9."""
    x = torch.tensor([[0.], [0.], [0.], [1.], [3.]], dtype=torch.float64)
    e = {d: float(np.exp(-d / 4)) / 4 for d in (1, 4, 9)}
    same(bare("fedamp").compute_attention(x @ x.T)[3:], [
        [e[1], e[1], e[1], 1 - 3 * e[1] - e[4], e[4]], [e[9], e[9], e[9], e[4], 1 - 3 * e[9] - e[4]]], 1e-12)
    # before round 1 all are there
    same(bare("fedamp").compute_attention(torch.zeros(3, 3, dtype=torch.float64)), torch.eye(3).tolist(), 1e-12)


def test_fedamp_addresses_participants_and_pulls_them():
    m, rows = bare("fedamp", network([0.]), alpha=.2, sigma=2., pull=1.5), Sent([[0.], [1.], [3.]])
    turn = who([0, 2], [1, 1])
    note, xi = m.messages(None, SimpleNamespace(w=rows), turn), m.compute_attention(rows.gram())
    same(note.u, xi[[0, 2]].tolist())
    assert turn.facts == {"own_weight": pytest.approx(float(xi.trace()) / 3)}
    client = Client(step=1., message=state("fedamp", "Message", u=[7.]))
    mine, sent = m.client(None, state("fedamp", "Mine", w=[2.]), client)
    (_, told), = client.calls
    assert mine.w.tolist() == [3.] and not sent and told["pull"][0][0].tolist() == [7.]
    assert told["pull"][0][1] == pytest.approx(1.5) and told["pull"][0][2] is None


def fomo(losses, models, step=0., w=(0., 0.)):
    """A client that trained from 0 and is now at `w`, and whose loss is given for every model."""
    def loss(w):
        return losses[tuple(round(v, 4) for v in w.tolist())]
    client = Client(step=step, loss=loss, message=state("fedfomo", "Message", models=models))
    own = state("fedfomo", "Mine", w=list(w), before=[0., 0.])
    mine, sent = bare("fedfomo", network([0., 0.])).client(None, own, client)
    same(mine.w - mine.before, [step, step])
    return mine.w, sent.weight, client.calls


def test_fedfomo_moves_to_each_model_as_far_as_it_helps():
    """The gains are .5, .4 and -.5 over distances 5, 2 and 1."""
    losses = {(0., 0.): 1., (3., 4.): .5, (0., 2.): .6, (1., 0.): 1.5}
    w, weight, calls = fomo(losses, [[3., 4.], [0., 2.], [1., 0.]], step=1.)
    same(weight, [.1, .2, -.5, 0.], 1e-4)
    same(w, [1 + 3 / 3, 1 + 4 / 3 + 2 * 2 / 3], 1e-4)
    assert calls[:2] == [("subset", (.8, 1, True, False)), ("subset", (.8, 1, True, True))]


def test_fedfomos_own_trained_model_is_one_of_those_compared():
    """The gains are .5, .4 and .3 over distances 5, 2 and 1 from where its last training began; copies do not count."""
    losses = {(0., 0.): 1., (3., 4.): .5, (0., 2.): .6, (0., 1.): .7}
    w, weight, _ = fomo(losses, [[3., 4.], [0., 2.], [0., 1.]], w=(0., 1.))
    same(weight, [.1, .2, 0., .3], 1e-4)
    same(w, [3 / 6, 4 / 6 + 2 * 2 / 6 + 1 * 3 / 6], 1e-4)


def test_fedfomo_gives_no_weight_to_what_is_worse_or_is_no_other():
    losses = {(0., 0.): 1., (3., 4.): 1.2, (.0001, 0.): .99}
    w, weight, _ = fomo(losses, [[3., 4.], [9e-6, 0.], [3., 4.]])
    same(weight, [-.04, 0., -.04, 0.], 1e-5)
    assert w.tolist() == [0., 0.]
    _, weight, _ = fomo(losses, [[1e-4, 0.]])
    assert float(weight[0]) == pytest.approx(.01 / (1e-4 + 1e-5), rel=1e-3)


AFFINITY = [[1., 9., 9., 9.], [.5, 1., .2, -1.], [9., 9., 1., 9.], [0., .1, .9, 1.]]


def test_fedfomo_adds_raw_weights_up_for_the_models_that_were_sent():
    m, turn = bare("fedfomo", network([0., 0.]), M=2, epsilon=0.), who([1, 3], [1, 1])
    shared = state("fedfomo", affinity=AFFINITY)
    assert m.choose_models(shared, turn).tolist() == [[0, 2], [2, 1]]
    note = m.messages(shared, SimpleNamespace(w=SimpleNamespace(mix=lambda c: c)), turn)
    np.testing.assert_array_equal(note.models, np.eye(4)[[[0, 2], [2, 1]]])
    found = m.server(shared, up(weight=[[.1, -.2, .6], [.3, .4, -.7]]), turn)
    same(found.affinity, [AFFINITY[0], [.6, 1.6, 0., -1.], AFFINITY[2], [0., .5, 1.2, .3]])
    same(shared.affinity, AFFINITY)
    # The generator's words: seed, round, client, and purpose.
    drawn = np.random.default_rng((3, 0, 2, 0xF00D))
    chances, order = drawn.random(4), [i for i in drawn.permutation(9) if i != 2]
    for epsilon in (0., .5, 1.):
        assert bare("fedfomo", M=4, epsilon=epsilon).choose_for(np.zeros(9), 2, turn).tolist() == order[:4]
    rising = np.arange(9.)
    assert bare("fedfomo", M=4, epsilon=max(chances) + 1e-6).choose_for(rising, 2, turn).tolist() == order[:4]
    assert bare("fedfomo", M=4, epsilon=min(chances) - 1e-6).choose_for(rising, 2, turn).tolist() == [8, 7, 6, 5]
    few = bare("fedfomo", M=4)
    # The client's own model stands for those that are missing.
    assert few.choose_for(np.array([1., 0., 2.]), 2, turn).tolist() == [0, 1, 2, 2]


# Means and clusters


@pytest.mark.parametrize("name, field, mean", [
    ("fedavg", "w", 4.), ("fedprox", "w", 4.), ("ditto", "w", 4.), ("fedah", "w", 4.), ("fedala", "w", 4.),
    ("per_fedavg", "w", 4.), ("fedper", "phi", 4.), ("fedrep", "phi", 4.), ("fedbabu", "phi", 4.),
    ("lg_fedavg", "h", 4.), ("fedsr", "w", 3.)])
def test_servers_weigh_clients_by_their_samples_unless_the_paper_does_not(name, field, mean):
    found = bare(name).server(None, up(**{field: [[1., 1.], [5., 5.]]}), who([0, 4], [10, 30]))
    same(getattr(found, field), [mean, mean])


@pytest.mark.parametrize("beta, w", [(1., 4.), (.25, 7.), (2., 0.)])
def test_pfedmes_server_goes_beta_of_the_way_to_the_mean(beta, w):
    m, shared = bare("pfedme", beta=beta), SimpleNamespace(w=torch.tensor([8.]))
    same(m.server(shared, up(w=[[1.], [5.]]), who([0, 4], [10, 30])).w, [w])


def test_ensembles_average_model_by_model():
    m, shared = bare("fedavg_plus", K=2), SimpleNamespace(w=torch.zeros(2, 1))
    sent = up(w=[[1., 10.], [5., 30.]])
    same(m.server(shared, sent, who([0, 4], [10, 30])).w, [[4.], [25.]])
    same(bare("fedavg_plus", K=2, weights="equal").server(shared, sent, who([0, 4], [10, 30])).w, [[3.], [20.]])
    same(bare("fedavg", weights="equal").server(None, sent, who([0, 4], [10, 30])).w, [3., 20.])


def test_fedcr_multiplies_gaussians():
    """The clients hold precisions 1 and 2 of class 0 and none of class 1, which stays as it is."""
    experts = torch.tensor([[1., 2., 0., 0.], [2., 4., 0., 0.]]) / 1024
    shared = state("fedcr", phi=[0.], mu=[[9.], [.25]], sigma=[[9.], [.125]])
    found = bare("fedcr", net=SimpleNamespace(classes=2)).server(shared, up(phi=[[1.], [5.]], experts=experts),
                                                                 who([0, 4], [10, 30]))
    same(found.phi, [3.])
    same(found.mu, [[1.5], [.25]])
    same(found.sigma, [[.5], [.125]])


def test_precisions_of_many_samples_stay_in_the_range_of_exact_sums(monkeypatch):
    """One of the highest, 10^4, for each sample; without units of their own 51,200 samples of a class had too many."""
    assert fedcr.find_unit(2 ** 15 - 1) == 1024
    for n in (1, 51_200, 10 ** 7, 10 ** 10):
        assert n * 1e4 / fedcr.find_unit(n) < .7 * exact.RANGE
    one = run("fedcr", samples=3)
    # Clients have 1 to 57 samples, so their units differ.
    monkeypatch.setattr(fedcr, "SAMPLES_PER_UNIT", 16)
    for engine in (Loop(), Vmap()):
        other = Lab(one.method, digits(), engine, share=.6).go(3)
        assert other.rows().experts.gather().abs().max() < one.rows().experts.gather().abs().max()
        torch.testing.assert_close(other.shared[1:], one.shared[1:], rtol=0, atol=1e-5)


HEADS = [[0., 1.], [1., 0.], [2., 2.], [9., 9.]]
SIZES = [2, 1, 1, 7]


def clusters(facts, centre, k=3):
    """Check labels 0, 0, 0, 1, and the mean distance from the first cluster's mean."""
    assert facts["clusters"].tolist() == [0, 0, 0, 1] and facts["k"] == k and facts["iterations"] == 2
    far = sum(hypot(x - centre[0], y - centre[1]) for x, y in HEADS[:3]) / 4
    assert facts["distance"] == pytest.approx(far, rel=1e-6)


@pytest.mark.parametrize("name, centre, phi", [("fedmhc", (1., 1.), 3.), ("fedmhc_ah", (.75, 1.), 49 / 11)])
def test_heads_are_clustered_from_the_centres_as_they_are(name, centre, phi):
    m, turn = bare(name, network([0.] * 3, phi=1), M=2), who([0, 2, 3, 5], SIZES)
    w = [[v, *h] for v, h in zip((1., 2., 3., 6.), HEADS, strict=True)]
    shared = state(name, phi=[0.], heads=[[.5, .5], [8., 8.]])
    found = m.server(shared, up(w=w), turn)
    same(found.heads, [list(centre), [9., 9.]])
    same(found.phi, [phi])
    clusters(turn.facts, centre, 2)
    swapped = m.server(shared._replace(heads=shared.heads.flip(0)), up(w=w), who([0, 2, 3, 5], SIZES))
    same(swapped.heads, [[9., 9.], list(centre)])


def squares(centres):
    return [[hypot(a - c, b - d) ** 2 for c, d in centres] for a, b in HEADS]


def test_contexts_of_cgpfl_go_a_of_the_way_to_their_members_mean():
    Omega, turn = [[.5, .5], [8., 8.], [50., 50.]], who([0, 2, 3, 5], SIZES)
    shared = state("cgpfl", Omega=Omega, context=[-1, 2, -1, 1, -1, 0])
    found = bare("cgpfl", K=3, a=.25).server(shared, up(omega=HEADS, squares=squares(Omega)), turn)
    assert found.context.tolist()[:2] + found.context.tolist()[4:5] == [0, 2, -1]
    labels = turn.facts["clusters"].tolist()
    assert found.context[torch.tensor([0, 2, 3, 5])].tolist() == labels and turn.facts["k"] == 3
    for k in range(3):
        mean = np.array(HEADS)[np.array(labels) == k].mean(0) if k in labels else np.array(Omega[k])
        same(found.Omega[k], (.75 * np.array(Omega[k]) + .25 * mean).tolist(), 1e-5)
    assert turn.facts["distance"] == pytest.approx(np.mean([
        np.linalg.norm(np.array(HEADS[i]) - np.array(HEADS)[np.array(labels) == labels[i]].mean(0))
        for i in range(4)]), abs=1e-6)


def test_two_contexts_and_clusters_by_value():
    Omega = [[.5, .5], [8., 8.]]
    turn = who([0, 2, 3, 5], SIZES)
    found = bare("cgpfl", K=2).server(state("cgpfl", Omega=Omega, context=[-1] * 6),
                                      up(omega=HEADS, squares=squares(Omega)), turn)
    same(found.Omega, [[1., 1.], [9., 9.]])
    assert found.context.tolist() == [0, -1, 0, 0, -1, 1]
    clusters(turn.facts, (1., 1.), 2)
    turn = who([0, 2, 3, 5], SIZES)
    cam = bare("pfedcam", K=2).server(state("pfedcam", Theta=Omega), up(w=HEADS, squares=squares(Omega)), turn)
    same(cam.Theta, [[.75, 1.], [9., 9.]])
    clusters(turn.facts, (1., 1.), 2)


def test_what_is_clustered_tells_how_far_it_is_from_the_centres():
    """Squared distances are sent, so the server need not see whole models."""
    shared = state("pfedcam", Theta=[[1., 1.], [4., 5.]])
    client = Client(step=0.)
    client.with_batches = lambda *a, kind: SimpleNamespace(
        descend=lambda net, s, **kw: client.calls.append((a, kw)) or s)
    m = bare("pfedcam", network([0., 0.]), K=2, interp_lr=.3, interp_epochs=2)
    mine, sent = m.client(shared, state("pfedcam", "Mine", s=[0., 0.]), client)
    same(sent.w, [2.5, 3.])
    same(sent.squares, [1.5 ** 2 + 2 ** 2] * 2)
    assert client.calls[0] == ((2, 1), {"lr": .3, "momentum": 0.})
    shared = state("cgpfl", Omega=[[1., 1.], [4., 5.]], context=[1, -1, 0])
    for number, omega, apart in ((0, [4., 5.], [25., 0.]), (1, [2.5, 3.], [6.25, 6.25]), (2, [1., 1.], [0., 25.])):
        client = Client(number)
        client.scan = lambda step, begin: begin
        mine, sent = bare("cgpfl", K=2).client(shared, None, client)
        same(sent.omega, omega)
        same(sent.squares, apart)
        assert mine.theta.tolist() == omega


@pytest.mark.parametrize("case", range(30))
def test_of_equal_centres_the_first_one_is_taken(case):
    """Clusters that never had a member are equal, and last bits of products must not choose among them."""
    generator = torch.Generator().manual_seed(case)
    images, there = torch.randn(7, 20, generator=generator), torch.randn(3, 20, generator=generator)
    shared = SimpleNamespace(R=torch.tensor([0, 4]), images=there[[0, 1, 0, 1, 2, 0]])
    assert set(bare("lcfed", K=6).assign_clusters(images, shared, None).tolist()) <= {0, 1, 4}
    m, turn = bare("fesem", network([0.] * 20), k=4), who([*range(7)], [1] * 7)
    m.server(state("fesem", w=there[[0, 1, 1, 1]].clone(), of=[0] * 7, n=1.), up(w=images), turn)
    # once the first one has moved to its members, the second one is where it was
    assert set(turn.facts["clusters"].tolist()) <= {0, 1, 2}


def test_precisions_that_attackers_send_leave_a_class_as_it_was():
    net = SimpleNamespace(classes=3, width=2)
    mu, sigma = torch.full((3, 2), 7.), torch.full((3, 2), 5.)
    # precisions and weighted means of three classes, as one honest client and an attacker send them
    honest = [3., 3., 6., 9., 8., 8., 4., 4., 0., 0., 0., 0.]
    attacker = [0., 0., 0., 0., -9., 1., 2., 2., 0., 0., 0., 0.]
    experts = torch.tensor([honest, attacker]) / fedcr.find_unit(1)
    found = bare("fedcr", net=net).server(state("fedcr", phi=[1.], mu=mu, sigma=sigma),
                                          up(phi=[[1.], [2.]], experts=experts), who([0, 1], [1, 1]))
    same(found.mu, [[6 / 4, 9 / 4], [7., 7.], [7., 7.]])
    same(found.sigma, [[.5, .5], [5., 5.], [5., 5.]])
