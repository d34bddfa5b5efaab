"""FeSEM: its limits, an independent transcription with k-means on whole models, and planted groups."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fedmpi.config.schema import resolve
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.errors import BadInput
from fedmpi.method import Participants
from tests.federations import Lab, apart, cnn, method
from tests.methods.reference import Reference, local
from tests.methods.trial import ROUNDS, near, run

SHARE = .6


def lloyd(x, centres, n):
    """Return each row's centre when no row changes its centre any more; an empty centre stays."""
    centres, labels = centres.copy(), None
    while True:
        new = np.array([np.argmin([np.sum((row - c) ** 2) for c in centres]) for row in x])
        if labels is not None and (new == labels).all():
            return labels
        labels = new
        for j in set(labels):
            centres[j] = np.average(x[labels == j], 0, n[labels == j])


def first(x, k, seed, n):
    """Return the best clusters of ten starts by k-means++."""
    state = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return KMeans(k, n_init=10, random_state=state).fit(x, sample_weight=n).labels_


def transcribed(ref, k, keep=False, lam=0., weighted=False, part=slice(None), share=False):
    """Return centres, clusters and the clients' own models, with k-means on the models themselves."""
    start, everybody = ref.start.double().numpy(), range(len(ref.data))
    w, of, theta, total = np.array([start] * k), {}, dict.fromkeys(everybody, ref.start), None
    for t in range(ROUNDS):
        who, sent = ref.who(t), []
        for i in who.ids:
            centre = torch.from_numpy(w[of[i]] if i in of else w.mean(0)).float()
            factor = len(ref.data[i][1]) / total if share and total else 1.
            theta[i] = pulled(ref, theta[i] if keep else centre, centre, i, t, lam * (i in of), factor)
            sent.append(theta[i].double().numpy())
        sent, n = np.array(sent), who.sizes if weighted else np.ones(len(who.ids))
        labels = lloyd(sent[:, part], w[:, part], n) if of else first(sent[:, part], k, (ref.config.seed, t + 1), n)
        w = np.array([np.average(sent[labels == j], 0, n[labels == j]) if (labels == j).any() else w[j]
                      for j in range(k)])
        of |= dict(zip(who.ids, labels, strict=True))
        total = who.sizes.sum()
    return torch.from_numpy(w).float(), of, theta


def pulled(ref, theta, centre, i, t, lam, factor):
    """Train theta with a scaled loss: the pull is divided by the factor and the rate multiplied by it."""
    usual = ref.lr
    ref.lr = lambda t: usual(t) * factor
    theta = ref.sgd(theta, ref.batches(i, t), t, penalty=lambda v: lam / factor / 2 * ((v - centre) ** 2).sum())
    ref.lr = usual
    return theta


SETTINGS = [{}, {"weights": "samples", "lam": .5}, {"keep": True, "lam": .5},
            {"keep": True, "lam": .5, "scale_by_share": True, "weights": "samples"}, {"layers": ["fc2"], "keep": True}]


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_is_what_its_formulas_say(mlp, federation, settings):
    found = run("fesem", k=3, **settings)
    ref = Reference(mlp, federation, found.config)
    w, of, theta = transcribed(ref, 3, settings.get("keep", False), settings.get("lam", 0.), "weights" in settings,
                               slice(ref.cut, None) if "layers" in settings else slice(None),
                               "scale_by_share" in settings)
    near(found.shared.w, w)
    assert found.shared.of.tolist() == [of.get(i, -1) for i in range(8)]
    assert len(set(of.values())) > 1
    if settings.get("keep"):
        for c in range(8):
            near(found.mine(c).theta, theta[c])


def test_one_cluster_is_fedavg():
    for weights in ("equal", "samples"):
        near(run("fesem", k=1, weights=weights).shared.w[0],
             run("fedavg", weights=weights).shared.w, 1e-6)


def test_clients_that_keep_their_models_without_a_pull_are_local(mlp, federation):
    found = run("fesem", keep=True)
    for c, w in local(Reference(mlp, federation, found.config), ROUNDS).items():
        near(found.mine(c).theta, w)


def test_the_default_is_not_the_limit():
    assert apart(run("fesem").state(), run("fesem", k=1).state()) > 1e-3


def test_a_stronger_pull_keeps_a_client_closer_to_its_centre(mlp, federation):
    lab = Lab(method("fesem", mlp, keep=True), federation).go(1)
    gaps = []
    for lam in (0., .5, 5., 15.):
        theta = lab.apply(method("fesem", mlp, keep=True, lam=lam).client, [2], 1)[2][0].theta
        gaps.append(float((theta - lab.shared.w[lab.shared.of[2]]).norm()))
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < gaps[0] / 3


def test_a_centre_whose_members_are_away_keeps_its_model(mlp, federation):
    lab = Lab(method("fesem", mlp, k=3), federation).go(1)
    before, of = lab.shared.w, lab.shared.of
    ids = (of == of[2]).nonzero().flatten().numpy()
    lab.round(1, Participants(ids, federation.sizes[ids], 1, 3))
    stays = [torch.equal(a, b) for a, b in zip(lab.shared.w, before, strict=True)]
    assert torch.equal(lab.shared.of, of) and stays == [j != int(of[2]) for j in range(3)]


def test_a_client_is_evaluated_by_its_own_centre_or_by_the_mean_of_all(mlp, federation):
    found = Lab(method("fesem", mlp, k=3), federation, share=SHARE).go(1)
    evaluated, of = found.apply(found.method.personal, range(8), 1), found.shared.of.tolist()
    assert of.count(-1) == 3 and len(set(of)) == 4
    for c, w in evaluated.items():
        assert torch.equal(w, found.shared.w[of[c]] if of[c] >= 0 else found.shared.w.mean(0))


def test_layers_are_named_blocks_or_all_linear_ones(mlp):
    convolutional = cnn()
    assert method("fesem", convolutional).slices == [slice(0, convolutional.size)]
    # behind the convolution
    cut = convolutional.blocks["4"].start
    assert method("fesem", convolutional, layers=["linear"]).slices == [slice(cut, convolutional.size)]
    assert method("fesem", convolutional, layers=["linear", "4.bias"]).slices[0].start == cut
    apart_ = method("fesem", mlp, layers=["fc2.bias", "fc1.bias"]).slices
    assert apart_ == [mlp.blocks["fc1.bias"], mlp.blocks["fc2.bias"]]
    # each number counts once, also where one block lies in another
    for layers in (["linear", "head"], ["head", "4"], ["base", "4", "linear"]):
        parts = method("fesem", convolutional, layers=layers).slices
        assert all(one.stop < other.start for one, other in zip(parts, parts[1:], strict=False))
        assert parts[-1].stop == convolutional.size
    with pytest.raises(BadInput, match="method.layers: 'fc7' is not part of this model; it can be linear, or"):
        method("fesem", mlp, layers=["fc7"])


def test_what_is_sent_is_k_models_down_and_one_up(mlp, federation):
    lab = Lab(method("fesem", mlp, k=4), federation)
    assert lab.method.traffic(lab.shared, lab.up) == (4 * 4 * mlp.size, 4 * mlp.size)


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_groups_are_found_in_the_first_round_and_kept(mlp, cache, seed):
    federation = Federation(prepare_federation(resolve({"data": {
        "clients": 20, "cache": str(cache), "partition": "pathological"}}).data, seed))
    lab = Lab(method("fesem", mlp), federation, seed=seed)
    ari = [adjusted_rand_score(federation.groups, lab.round(t).facts["clusters"]) for t in range(4)]
    assert ari == [1.] * 4
