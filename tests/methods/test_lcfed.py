"""LCFed: its limit, an independent transcription, the cost of its similarities, and planted groups."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

from fedmpi.clustering.low_rank import count_multiply_adds
from fedmpi.config.schema import resolve
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.errors import BadInput
from fedmpi.method import nbytes
from tests.federations import Digits, Lab, apart, method
from tests.methods.reference import Reference
from tests.methods.trial import ROUNDS, near, run

SHARE = .6
SMALL = {"K": 3, "D": 4}


def trained(ref, i, t, omega, Omega, Phi, mu, lam):
    """Return omega_i after local training; the pre-round has the learning rate of round 0."""
    def penalty(w):
        cluster = 0. if Omega is None else mu / 2 * ((w - Omega) ** 2).sum()
        return cluster + lam / 2 * ((w[:ref.cut] - Phi) ** 2).sum()
    return ref.sgd(omega, ref.batches(i, t), max(t, 0), penalty=penalty)


def components(ref, ids, D, lam):
    """Return scikit-learn's principal components of the models of the pre-round."""
    start = ref.start
    models = torch.stack([trained(ref, i, -1, start, None, start[:ref.cut], 0., lam) for i in ids])
    return PCA(D, svd_solver="full").fit(models.double().numpy()).components_


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def renumber(labels, like):
    """Return the same groups with the numbers of `like`.

    k-means++ may choose either of two far rows first: their sums of distances are equal, so rounding numbers them."""
    numbers = dict(zip(labels.tolist(), like.tolist(), strict=True))
    assert len(set(numbers.values())) == len(numbers), "`like` unites two groups"
    return [numbers[label] for label in labels.tolist()]


def transcribed(ref, M, K, mu, lam, first):
    """Return Phi, Omega, R and every omega_i after algorithm 1, with whole vectors in place of the method's images.

    The clusters of the first round get the numbers that they have in `first` (n,)."""
    n = len(ref.data)
    Phi, Omega = ref.start[:ref.cut], torch.stack([ref.start] * K)
    omega, R = dict.fromkeys(range(n), ref.start), np.full(n, -1)
    for t in range(ROUNDS):
        ids = ref.who(t).ids
        for i in ids:
            centre = Omega[R[i]] if R[i] >= 0 else None
            omega[i] = trained(ref, i, t, omega[i], centre, Phi, mu, lam)
        models = torch.stack([omega[i] for i in ids]).double().numpy()
        images = unit(models @ M.T)
        if t == 0:
            state = int(np.random.SeedSequence((ref.config.seed, 0)).generate_state(1)[0])
            R[ids] = renumber(KMeans(K, n_init=1, random_state=state).fit(images).labels_, first[ids])
        else:
            R[ids] = (images @ unit(Omega.double().numpy() @ M.T).T).argmax(1)
        Omega = torch.stack([torch.from_numpy(models[R[ids] == k].mean(0)).float() if (R[ids] == k).any() else Omega[k]
                             for k in range(K)])
        Phi = torch.from_numpy(models[:, :ref.cut].mean(0)).float()
    return Phi, Omega, R, omega


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("share", [1., SHARE])
def test_it_is_what_its_formulas_say(mlp, federation, share):
    settings = {"mu": .6, "lam": .3, **SMALL}
    found = run("lcfed", participation=share, **settings)
    ref = Reference(mlp, federation, found.config)
    M = components(ref, found.method.warm_up_participants(8, 3), 4, .3)
    signs = np.sign((M * found.shared.M.numpy()).sum(1, keepdims=True))
    near(found.shared.M, torch.from_numpy(M * signs).float(), 1e-4)
    first = run("lcfed", participation=share, rounds=1, **settings).shared.R
    Phi, Omega, R, omega = transcribed(ref, M, 3, .6, .3, first)
    assert found.shared.R.tolist() == R.tolist() and len(set(R)) > 2
    near(found.shared.Phi, Phi)
    near(found.shared.Omega, Omega)
    near(found.shared.images, found.shared.Omega @ found.shared.M.T, 1e-4)
    for c in range(8):
        near(found.mine(c).omega, omega[c])
        near(found.apply(found.method.personal, [c])[c], omega[c])


def test_one_cluster_without_pulls_is_local():
    free, alone = run("lcfed", mu=0., lam=0., K=1), run("local")
    for c in range(8):
        near(free.mine(c).omega, alone.mine(c).w, 0)


@pytest.mark.parametrize("limit", [{"mu": 0.}, {"lam": 0.}, {"K": 1}])
def test_the_defaults_are_not_the_limits(limit):
    default, other = (run("lcfed", **SMALL | chosen) for chosen in ({}, limit))
    assert max((default.mine(c).omega - other.mine(c).omega).abs().max() for c in range(8)) > 1e-5


def test_a_stronger_pull_keeps_a_client_closer_to_its_centre(mlp):
    gaps = []
    for mu in (0., 1., 10.):
        lab = run("lcfed", participation=1., rounds=1, mu=.1, lam=0., **SMALL)
        lab.method = method("lcfed", mlp, mu=mu, lam=0., **SMALL)
        omega = lab.apply(lab.method.client, [2], 1)[2][0].omega
        gaps.append(float((omega - lab.shared.Omega[lab.shared.R[2]]).norm()))
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < gaps[0] / 2


def test_of_the_pre_round_nothing_is_kept_but_the_components(mlp, federation):
    lab = Lab(method("lcfed", mlp, **SMALL), federation)
    first = lab.shared
    opened = lab.open().shared
    assert opened.M.any() and not first.M.any()
    near(opened.M @ opened.M.T, torch.eye(4), 1e-4)
    assert torch.equal(opened.Omega, first.Omega) and torch.equal(opened.R, first.R)
    assert all(torch.equal(lab.mine(c).omega, mlp.start) for c in range(8))


def test_a_client_that_never_took_part_is_pulled_to_no_cluster():
    lab = run("lcfed", rounds=1, mu=5., lam=0., **SMALL)
    absent = int((lab.shared.R < 0).nonzero()[0])
    free = run("local", rounds=1)
    near(lab.apply(lab.method.client, [absent], 1)[absent][0].omega,
         free.apply(free.method.client, [absent], 1)[absent][0].w, 0)


def facts(mlp, federation, **settings):
    lab = Lab(method("lcfed", mlp, **SMALL | settings), federation).open()
    lab.round(0)
    return lab, lab.round(1).facts


def test_the_cost_of_similarity_falls_as_the_vectors_do(mlp, federation):
    lab, found = facts(mlp, federation)
    whole = count_multiply_adds(8, 3, mlp.size)
    assert found["similarity_multiply_adds"] * mlp.size == whole * 4
    assert found["similarity_bytes"] == 8 * 4 * 4 and found["bytes_once"] == 4 * mlp.size * 4
    assert found["seconds_similarity"] >= 0 and found["components"] == 4
    assert count_multiply_adds(2, 3, 5) == (2 * 3 + 2 + 3) * 5


def test_the_server_assigns_from_images_alone():
    """The clusters follow from the images, whatever the models are."""
    lab = run("lcfed", rounds=1, participation=1., **SMALL)
    who = lab.train(1)
    images = lab.rows().image.gather()
    blind = lab.shared._replace(Phi=None, Omega=None, M=None)
    assert lab.method.assign_clusters(images, blind, who).tolist() == lab.round(1).facts["clusters"].tolist()


def test_a_client_receives_its_own_centre_and_the_extractor(mlp):
    lab = run("lcfed", rounds=1, **SMALL)
    down, up = lab.method.traffic(lab.shared, lab.up)
    assert down == 4 * (mlp.phi.stop + mlp.size) and up == 4 * (mlp.size + 4)
    assert down < nbytes(lab.shared)


def test_few_clients_give_fewer_components():
    lab = run("lcfed", federation=Digits((12, 9, 14)), participation=1.)
    # Three models vary in two directions.
    assert len(lab.shared.M) == 3 and not lab.shared.M[2].any()
    assert all(v.isfinite().all() for v in lab.state().values())
    alone = run("lcfed", federation=Digits((12,)), participation=1.)
    assert not alone.shared.M.any() and apart(alone.state(), Lab(alone.method, Digits((12,))).state()) > 1e-3


def test_a_sample_smaller_than_the_components_is_refused(mlp):
    with pytest.raises(BadInput, match=r"^method.sample = 9: so few models have no D = 10 components; raise it, or "):
        method("lcfed", mlp, sample=9, D=10)


def test_the_sample_is_as_large_as_told(mlp):
    for settings, size in (({"D": 5}, 6), ({"D": 5, "sample": 9}, 9), ({"D": 50}, 20)):
        ids = method("lcfed", mlp, **settings).warm_up_participants(20, seed=1)
        assert len(ids) == size and (np.diff(ids) > 0).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_groups_are_found(mlp, cache, seed):
    """20 clients are in 5 groups of two classes each."""
    data = resolve({"data": {"clients": 20, "cache": str(cache), "partition": "pathological"}}).data
    federation = Federation(prepare_federation(data, seed))
    lab = Lab(method("lcfed", mlp, K=5, D=10), federation, seed=seed).open()
    for t in range(4):
        found = lab.round(t).facts["clusters"]
    assert adjusted_rand_score(federation.groups, found) == 1
