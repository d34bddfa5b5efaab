"""CFL: its limit, its formulas written a second time, and planted groups that two levels of splits find."""
from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from fedmpi.methods._cam import CAM
from fedmpi.methods.cfl import CFL
from tests.federations import Digits, View, apart
from tests.methods.plain import again
from tests.methods.trial import ROUNDS, near, run

SPLITS = {"after": 0, "eps1": 10., "eps2": 0.}


@dataclass(frozen=True)
class CFLCAM(CAM, CFL):
    """CFL with a global model beside its clusters."""


def two_parts(cos, members):
    """Do complete linkage by hand: merge the parts whose most different members are most alike until two are left."""
    parts = [[m] for m in members]
    while len(parts) > 2:
        a, b = max(itertools.combinations(parts, 2), key=lambda ab: min(cos[i, j] for i in ab[0] for j in ab[1]))
        parts = [p for p in parts if p not in (a, b)] + [a + b]
    return parts


def written(ref, M, eps1, eps2, after, relative=True, rounds=ROUNDS):
    """Return models and every client's cluster; the larger child (of two equal ones the first client's) stays."""
    models, cluster, unit = [ref.start], np.zeros(len(ref.data), int), 1.
    for t in range(rounds):
        ids = ref.who(t).ids
        dW = {i: ref.sgd(models[cluster[i]], ref.batches(i, t), t) - models[cluster[i]] for i in ids}
        if t == 0 and relative:
            unit = max(float(d.norm()) for d in dW.values())
        before = cluster.copy()
        for c in range(len(models)):
            members = [i for i in ids if before[i] == c]
            if not members:
                continue
            mean = torch.stack([dW[i] for i in members]).mean(0)
            large = max(float(dW[i].norm()) for i in members)
            scale = unit * ref.lr(t) / ref.lr(0) if relative else 1.
            split = mean.norm() < eps1 * scale and large > eps2 * scale and len(members) > 2 and t >= after
            if not split or len(models) == M:
                models[c] = models[c] + mean
                continue
            cos = {(i, j): float(dW[i] @ dW[j] / dW[i].norm() / dW[j].norm()) for i in members for j in members}
            small = min(two_parts(cos, members), key=lambda p: (len(p), min(p) == min(members)))
            cluster[small] = len(models)
            models.append(models[c])
    return models, cluster


@pytest.mark.parametrize("M, settings", [
    (10, SPLITS), (3, SPLITS), (10, SPLITS | {"after": 1}),
    (10, {"after": 0, "eps1": .045, "eps2": .1, "relative": False}), (10, {"after": 0, "eps1": .6, "eps2": .5})])
def test_the_formulas(M, settings, momentum):
    found = run("cfl", M=M, **settings)
    models, cluster = written(again(found), M, **settings)
    assert found.shared.cluster.tolist() == cluster.tolist()
    assert int(found.shared.count) == len(models)
    # With momentum, updates are longer, and these norms do not split.
    assert len(models) > 1 or momentum
    near(found.shared.models[:len(models)], torch.stack(models))
    for c in range(8):
        near(found.apply(found.method.personal, [c])[c], models[cluster[c]])


@pytest.mark.parametrize("settings", [{}, {"after": 0, "eps1": 0.}, {"after": 0, "eps2": 1e9}, SPLITS | {"M": 1}])
def test_it_is_fedavg_where_nothing_is_split(settings):
    near(run("cfl", **settings).shared.models[0], run("fedavg", weights="equal").shared.w, 1e-6)


@pytest.mark.parametrize("made, words", [(CFL(), "method.after = 20: no cluster is split in any of rounds = 20, "),
                                         (CFLCAM(warm_up=1), "method.after = 20: no cluster is split ")], ids=str)
def test_a_run_that_ends_before_the_first_split_says_so(made, words):
    said, = made.list_oddities(20)
    assert said.startswith(words) and made.list_oddities(21) == []
    said, = replace(made, M=1).list_oddities(21)
    assert said.startswith("method.M = 1: no cluster is ever split")


def test_a_split_shows():
    assert apart(run("cfl", **SPLITS).state(), run("cfl").state()) > 1e-3


def test_two_clients_are_not_split():
    lab = run("cfl", rounds=0, **SPLITS)
    assert [lab.method.should_split(0., torch.ones(n), 1., 0) for n in (0, 1, 2, 3)] == [False] * 3 + [True]


def test_relative_thresholds_wait_for_the_first_update():
    """They could not be set in a round in which nobody took part. What is kept is the norm at the full rate."""
    lab = run("cfl", rounds=0, **SPLITS)
    assert lab.shared.unit == 0
    facts = lab.round(1).facts
    first = lab.shared.unit.clone()
    lab.round(2)
    assert float(first) == pytest.approx(facts["largest_update"][0] / lab.config.train.lr_decay)
    assert lab.shared.unit == first > 0


def test_who_did_not_take_part_stays():
    """Only participants leave a cluster."""
    before = np.zeros(8, int)
    for t in range(1, ROUNDS + 1):
        lab = run("cfl", rounds=t, **SPLITS)
        after = lab.shared.cluster.numpy()
        assert set(np.flatnonzero(after != before)) <= set(lab.who(t - 1).ids)
        assert (after != before).any()
        before = after


class Relabelled(View):
    """Clients of four groups, i % 4, in two pairs: the groups of a pair differ in few labels, the pairs in all."""
    ORDERS = [list(range(10)), [1, 0, 3, 2, 4, 5, 6, 7, 8, 9], [7, 6, 9, 8, 2, 3, 0, 1, 5, 4],
              [6, 7, 8, 9, 2, 3, 0, 1, 5, 4]]

    def client(self, i):
        s = self.original.client(i)
        return s._replace(y_train=np.array(self.ORDERS[i % 4])[s.y_train])


class Even(Digits):
    """Clients of the same distribution."""

    def __init__(self, clients, n):
        super().__init__((n,) * clients, test=2)
        rng = np.random.default_rng(0)
        x, y = (np.concatenate([getattr(s, name) for s in self.parts]) for name in ("x_train", "y_train"))
        deal = rng.permutation(len(y)).reshape(clients, n)
        self.parts = [s._replace(x_train=x[d], y_train=y[d]) for s, d in zip(self.parts, deal, strict=True)]


def test_two_levels_of_splits_find_the_planted_groups():
    planted = Relabelled(Even(12, 60))
    lab, levels = run("cfl", 1., 0, planted, M=4, after=6, eps1=.75, eps2=.3), []
    for t in range(20):
        lab.round(t)
        levels.append(lab.shared.cluster.numpy())
    pairs, groups = np.arange(12) % 4 // 2, np.arange(12) % 4
    counts = [len(set(c)) for c in levels]
    assert counts[0] == 1 and adjusted_rand_score(levels[counts.index(2)], pairs) == 1
    assert adjusted_rand_score(levels[-1], groups) == 1


@pytest.mark.parametrize("settings, clusters", [({}, 2), ({"relative": False, "eps1": .4, "eps2": 1.6}, 1)])
def test_defaults_find_planted_groups_where_the_norms_for_emnist_never_split(settings, clusters):
    """Only `after` is lowered; two levels also need a larger eps1. The measurements of each cluster are reported."""
    lab = run("cfl", 1., 0, Relabelled(Even(12, 60)), after=6, **settings)
    for t in range(20):
        facts = lab.round(t).facts
    assert facts["clusters_found"] == clusters
    assert adjusted_rand_score(lab.shared.cluster, np.arange(12) % 4 // 2 % clusters) == 1
    assert len(facts["mean_update"]) == len(facts["largest_update"]) == clusters
    assert all(0 < mean < largest for mean, largest in zip(facts["mean_update"], facts["largest_update"], strict=True))


def test_a_client_receives_and_sends_one_model():
    lab = run("cfl", rounds=0)
    assert lab.method.traffic(lab.shared, lab.up) == (4 * 1210, 4 * 1210)
