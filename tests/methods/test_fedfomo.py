"""FedFomo: its formulas written a second time, whose models are sent, and what validates."""
from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedmpi.methods.fedfomo import CHOICE_STREAM
from tests.clients.normed import model_of
from tests.federations import View, apart, method
from tests.methods.plain import again
from tests.methods.trial import ROUNDS, digits, near, network, run


def sent_to(i, t, seed, affinity, M, epsilon):
    """Return whose models client i is sent, with the draws of the method."""
    draws, found = np.random.default_rng((seed, t, i, CHOICE_STREAM)), []
    chances, drawn = draws.random(M), [j for j in draws.permutation(len(affinity)) if j != i]
    for chance in chances:
        left = [j for j in drawn if j not in found]
        if left:
            found.append(left[0] if chance < epsilon else max(left, key=lambda j: affinity[i, j]))
    return found


def written(ref, M, epsilon, fall, held_out=.2):
    n = len(ref.data)
    w, affinity = dict.fromkeys(range(n), ref.start), np.eye(n, dtype=np.float32)
    # The model from which each client trained last.
    v = dict(w)
    for t in range(ROUNDS):
        before, rows = dict(w), affinity.copy()
        for i in ref.who(t).ids:
            train = ref.part(i, t, 1 - held_out, 1, fixed=True)
            held = ref.part(i, t, 1 - held_out, 1, fixed=True, rest=True)
            weight = {}
            for j in [*sent_to(i, t, ref.config.seed, rows, M, epsilon - t * fall), i]:
                distance = (before[j] - v[i]).norm()
                gain = ref.loss_on(v[i], held) - ref.loss_on(before[j], held)
                weight[j] = float(gain / (distance + 1e-5)) if distance > 1e-5 else 0.
                affinity[i, j] += weight[j]
            total = sum(max(x, 0) for x in weight.values()) or 1.
            v[i] = v[i] + sum(max(x, 0) / total * (before[j] - v[i]) for j, x in weight.items())
            w[i] = ref.sgd(v[i], ref.batches_of(train, i, t), t)
    return w, torch.from_numpy(affinity)


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("M, epsilon, fall, held_out", [
    (5, .3, .05, .2), (2, 0., 0., .3), (2, 1., 0., .2), (3, .5, .25, .5), (20, 0., .05, .2)])
def test_the_formulas(M, epsilon, fall, held_out):
    found = run("fedfomo", M=M, epsilon=epsilon, fall=fall, held_out=held_out)
    w, affinity = written(again(found), M, epsilon, fall, held_out)
    near(found.shared.affinity, affinity, 1e-4)
    assert (affinity > 0).sum() > 5 and (affinity < 0).any()
    for c in range(8):
        near(found.mine(c).w, w[c])
        near(found.apply(found.method.personal, [c])[c], w[c])


def test_the_models_of_highest_affinity_are_sent():
    method_, table = method("fedfomo", network(), M=2, epsilon=0.), torch.eye(6)
    table[4] = torch.tensor([.1, -3., .7, 0., 1., .5])
    table[1, 5] = -.1
    who = SimpleNamespace(ids=np.array([1, 4]), round=3, seed=0)
    before = table.clone()
    rows = method_.choose_models(SimpleNamespace(affinity=table), who)
    assert rows[1].tolist() == [2, 5]
    assert len(set(rows[0])) == 2 and not {1, 5} & set(rows[0].tolist())
    near(table, before)


def test_equal_affinities_come_in_an_order_drawn_for_round_and_client():
    method_, table = method("fedfomo", network(), M=3, epsilon=0.), SimpleNamespace(affinity=torch.eye(30))
    rows = [tuple(r) for t in range(4) for r in method_.choose_models(
        table, SimpleNamespace(ids=np.arange(30), round=t, seed=0)).tolist()]
    assert len(set(rows)) > 110


def test_greed_and_chance():
    """With epsilon = 1 affinities do not matter; with 0 only they do."""
    table = torch.eye(9)
    table[0] = torch.arange(9.)
    who = [SimpleNamespace(ids=np.array([0]), round=t, seed=1) for t in range(60)]

    def best(epsilon, fall=0.):
        found = method("fedfomo", network(), M=1, epsilon=epsilon, fall=fall)
        return [int(found.choose_models(SimpleNamespace(affinity=table), w)[0, 0]) for w in who]
    assert set(best(0.)) == {8} and set(best(1.)) == set(range(1, 9))
    assert 20 < sum(j == 8 for j in best(.5)) < 50
    # Random choices end after 10 rounds.
    assert set(best(1., .1)[10:]) == {8} and len(set(best(1., .1)[:5])) > 2


def test_each_model_that_is_sent_is_one_of_chance_or_of_greed():
    table = torch.eye(9)
    table[0] = torch.arange(9.)
    found = method("fedfomo", network(), M=4, epsilon=.5, fall=0.)
    who = [SimpleNamespace(ids=np.array([0]), round=t, seed=1) for t in range(60)]
    rows = [found.choose_models(SimpleNamespace(affinity=table), w)[0].tolist() for w in who]
    assert all(len({*row, 0}) == 5 for row in rows)
    assert {sum(j in row for j in (8, 7, 6, 5)) for row in rows} >= {2, 3, 4}


def test_running_statistics_are_no_part_of_a_distance():
    found = method("fedfomo", model_of())
    v = torch.zeros(found.model.size)
    models = torch.stack([v, v])
    models[1, 0] = 3.
    for statistics in found.model.buffers:
        models[:, statistics] = 5.
    assert (models == 5).sum() > 9 and found.measure_distances(models, v).tolist() == [0., 3.]


class HeldLabels(View):
    """The same federation with other labels for the samples that are held out."""

    def client(self, i):
        from fedmpi.engines import batch_plan
        s = self.original.client(i)
        settings, y = batch_plan.LocalTraining(3, 0, 10, 1, None, .05, 0.), s.y_train.copy()
        held = batch_plan.draw_subset(settings, i, 1, len(y), .8, True, True)
        y[held] = (y[held] + 3) % 10
        return s._replace(y_train=y)


def test_what_validates_does_not_train():
    """In the first round all models are equal, so held-out samples decide nothing; later they do."""
    first, other = (run("fedfomo", rounds=1, federation=f) for f in (digits(), HeldLabels(digits())))
    # Client 1 has a single sample, which both trains and validates.
    for c in set(range(8)) - {1}:
        near(first.mine(c).w, other.mine(c).w, 0)
    assert apart(run("fedfomo").state(), run("fedfomo", federation=HeldLabels(digits())).state()) > 1e-3


def test_a_client_that_nobody_helps_trains_alone():
    """Models that are worse than its own get no weight; its own training does, if it helped."""
    lab = run("fedfomo", participation=1., rounds=1)
    for c in range(8):
        w = lab.mine(c).w
        lab.group.store.write(c, lab.mine(c)._replace(w=w if c == 2 else -9 * w))
    (w, v), ref = lab.mine(2), again(lab)
    held, train = ref.part(2, 1, .8, 1, fixed=True, rest=True), ref.part(2, 1, .8, 1, fixed=True)
    assert ref.loss_on(w, held) < ref.loss_on(v, held)
    lab.round(1)
    near(lab.mine(2).w, ref.sgd(w, ref.batches_of(train, 2, 1), 1))
    near(lab.mine(2).before, w)
    assert (lab.shared.affinity[2] <= 0).sum() >= 5 and lab.shared.affinity[2, 2] > 1


def test_a_training_that_did_not_help_is_taken_back():
    """If its own trained model and those of all others are worse, a client starts from the same model again."""
    lab = run("fedfomo", participation=1., rounds=1)
    v, ref = lab.mine(2).before, again(lab)
    for c in range(8):
        lab.group.store.write(c, lab.mine(c)._replace(w=-9 * lab.mine(c).w))
    lab.round(1)
    near(lab.mine(2).before, v, 0)
    near(lab.mine(2).w, ref.sgd(v, ref.batches_of(ref.part(2, 1, .8, 1, fixed=True), 2, 1), 1))


def test_bytes_of_a_client():
    lab = run("fedfomo", rounds=0, M=3)
    assert lab.method.traffic(lab.shared, lab.up) == (3 * 4 * 1210, 4 * 1210 + 4 * 4)


def test_a_copy_of_its_own_model_is_worth_nothing():
    """Otherwise a rounding error divided by a distance of nearly 0 would get a large weight."""
    lab = run("fedfomo", participation=1., rounds=1)
    for c in range(8):
        lab.group.store.write(c, lab.mine(c)._replace(w=lab.mine(2).w + 1e-8 * (c != 2)))
    before = lab.shared.affinity.clone()
    lab.round(1)
    assert torch.equal(*(table.fill_diagonal_(1.) for table in (lab.shared.affinity, before)))
