"""FedCPS: its limit, an independent transcription, how lam follows the samples, final identities, and its bytes."""
from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedmpi.engines import batch_plan
from fedmpi.errors import BadInput
from fedmpi.method import Participants
from fedmpi.storage.history import read_history
from tests.federations import Digits, Lab, method
from tests.methods.reference import Reference
from tests.methods.trial import ROUNDS, near, run
from tests.runs import run_alone

SHARE = .6


class Written:
    """Algorithm 2 with eq. 3 written out round by round; each cluster has its own head."""

    def __init__(self, ref, starts, lam, own=False):
        self.ref, self.lam, self.k, self.own, n = ref, lam, len(starts), own, len(ref.data)
        self.base, self.theta = starts[0, :ref.cut], [w[ref.cut:] for w in starts]
        self.w, self.sigma2 = dict.fromkeys(range(n), ref.start), np.zeros(n)
        self.tau2, self.scale, self.ID, self.used = np.zeros(self.k), 0., np.full(n, -1), {}

    def round(self, t):
        ids, cut, moved = self.ref.who(t).ids, self.ref.cut, []
        for i in ids:
            self.ID[i] = np.argmin([self.loss(i, t, torch.cat([self.base, part])) for part in self.theta])
            model = torch.cat([self.base, self.theta[self.ID[i]]])
            start = torch.cat([self.base, self.w[i][cut:]]) if self.own else model
            self.w[i], gradients = self.train(i, t, start, model, self.strength(i))
            if len(gradients) > 1:
                self.sigma2[i] = gradients.var(0, ddof=1).sum()
            moved.append(float(((self.w[i] - model) ** 2).sum()))
        sent, j, moved = torch.stack([self.w[i] for i in ids]).double(), self.ID[ids], np.array(moved)
        self.base = sent[:, :cut].mean(0).float()
        for m in set(j):
            self.theta[m], self.tau2[m] = sent[j == m, cut:].mean(0).float(), moved[j == m].mean()
        seen = self.sigma2[ids][self.sigma2[ids] > 0]
        if len(seen):
            tau2 = np.median(self.tau2[j][self.sigma2[ids] > 0])
            self.scale = self.lam * np.median(self.ref.federation.sizes[ids]) ** 2 * tau2 / np.median(seen)

    def strength(self, i):
        tau2 = self.tau2[self.ID[i]]
        known = self.scale and self.sigma2[i] and tau2
        n = int(self.ref.federation.sizes[i])
        self.used[i] = np.clip(self.scale * self.sigma2[i] / (n ** 2 * tau2), .001, 10.) if known else self.lam
        return self.used[i]

    def loss(self, i, t, w):
        x, y = self.ref.data[i]
        local = batch_plan.LocalTraining(self.ref.config.seed, t, 10, 1, None, .1, 0.)
        kept = batch_plan.draw_subset(local, i, 1, len(y), .5, False, False)
        assert len(kept) == max(1, len(y) // 2)
        with torch.no_grad():
            return float(F.cross_entropy(self.ref.network(w)(x[kept]), y[kept]))

    def train(self, i, t, w, model, lam):
        gradients, velocity = [], torch.zeros_like(model)
        for x, y in self.ref.batches(i, t):
            module = self.ref.network(w)
            F.cross_entropy(module(x), y).backward()
            gradients.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
            velocity = self.ref.train.momentum * velocity + gradients[-1] + lam * (w - model)
            w = w - self.ref.lr(t) * velocity
        return w, torch.stack(gradients).double().numpy()


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("share, whose", [(1., "cluster"), (SHARE, "cluster"), (1., "client")])
def test_it_is_what_its_formulas_say(mlp, federation, share, whose):
    found = run("fedcps", participation=share, layers=1, lam=.4, personal_layers=whose)
    written = Written(Reference(mlp, federation, found.config), mlp.starts(3), .4, whose == "client")
    for t in range(ROUNDS):
        written.round(t)
    near(found.shared.base, written.base)
    near(found.shared.theta, torch.stack(written.theta))
    np.testing.assert_allclose(found.shared.tau2, written.tau2, rtol=1e-4)
    np.testing.assert_allclose(found.shared.scale, written.scale, rtol=1e-4)
    assert found.shared.ID.tolist() == written.ID.tolist() and len(set(written.ID)) > 1
    # Eq. 3 had an effect.
    assert len({round(v, 4) for v in written.used.values()}) > 3
    for c in range(8):
        near(found.mine(c).w, written.w[c])
        np.testing.assert_allclose(found.mine(c).sigma2, written.sigma2[c], rtol=1e-3, atol=1e-6)
        near(found.apply(found.method.personal, [c])[c], written.w[c])


@pytest.mark.parametrize("layers", [1, 2])
def test_one_cluster_without_pull_is_fedavg(layers):
    free, plain = run("fedcps", k=1, lam=0., layers=layers), run("fedavg", weights="equal")
    near(torch.cat([free.shared.base, free.shared.theta[0]]), plain.shared.w, 1e-6)


@pytest.mark.parametrize("limit", [{"k": 1}, {"lam": 0.}])
def test_the_defaults_are_not_the_limits(limit):
    default, other = (run("fedcps", layers=1, **chosen) for chosen in ({}, limit))
    assert max((default.mine(c).w - other.mine(c).w).abs().max() for c in range(8)) > 1e-4


def test_the_pull_is_towards_the_cluster_model(mlp):
    gaps = []
    for lam in (0., 1., 10.):
        lab = run("fedcps", rounds=1, participation=1., lam=lam, k=1, layers=1)
        gaps.append(float((lab.mine(2).w - mlp.start).norm()))
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < gaps[0] / 2


def lams(federation, **settings):
    lab = run("fedcps", rounds=1, participation=1., federation=federation, k=1, layers=1, **settings)
    who = lab.train(1)
    lab.method.server(lab.shared, lab.rows(), who)
    return lab, who.each["lam"]


def test_few_samples_make_a_strong_pull():
    """Clients of one kind differ only in their number of samples; the median one has lam."""
    pool = Digits((120,)).client(0)

    class Sliced(Digits):
        def client(self, i):
            n = int(self.sizes[i])
            return pool._replace(x_train=pool.x_train[:n], y_train=pool.y_train[:n])
    sizes = (20, 50, 60, 70, 120)
    _, found = lams(Sliced(sizes), lam=.2, lam_max=100.)
    assert found[0] > 2 * found[1:4].max() and found[4] < found[1:4].min() and .1 < np.median(found) < .4
    _, clipped = lams(Sliced(sizes), lam=.2, lam_max=.3, lam_min=.15)
    np.testing.assert_allclose(clipped, np.clip(found, .15, .3), rtol=1e-5)
    assert {.15, .3} < set(clipped.round(6).tolist())


def test_the_factor_is_that_of_medians(mlp):
    lam = .3
    sizes, sigma2, tau2 = np.array([10, 20, 90]), np.array([1., 2., 9.]), np.array([.1, .4, .5])
    factor = method("fedcps", mlp, lam=lam).compute_scale(torch.tensor(7.), sizes, sigma2, tau2)
    assert float(factor) * 2 / (20 ** 2 * .4) == pytest.approx(lam)
    assert method("fedcps", mlp).compute_scale(torch.tensor(7.), np.array([3]), np.array([0.]), np.array([.1])) == 7


def test_a_client_of_a_single_batch_keeps_the_given_pull():
    _, found = lams(Digits((8, 35, 47)), lam=.2)
    assert found[0] == np.float32(.2) and len(set(found)) == 3


class Told:
    """A stand-in for the rows that a server receives."""

    def __init__(self, mlp, j):
        w = torch.stack([mlp.start + .01 * i for i in range(len(j))])
        told = torch.tensor([[.1, 1., 1.]] * len(j))
        self.w, self.j, self.told = Column(w), Column(torch.tensor(j)[:, None]), Column(told)


class Column:
    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, block):
        return Column(self.rows[:, block])

    def gather(self):
        return self.rows

    def mean(self):
        return self.rows.mean(0)

    def mean_by(self, group, k, old):
        return torch.stack([self.rows[group == m].mean(0) if (group == m).any() else old[m] for m in range(k)])


def test_identities_are_final_after_so_many_quiet_rounds(mlp):
    """Unknown clients and changes start the count again; traffic falls in the round that follows so many."""
    m = method("fedcps", mlp, stable=2, layers=1)
    shared, _ = m.init(3)
    whole = m.traffic(shared, m.init(3)[1])[0]
    turns = [([0, 1], [0, 1]), ([0, 1], [0, 1]), ([0, 2], [0, 2]), ([0, 1, 2], [0, 1, 2]), ([0, 1], [1, 1]),
             ([0, 2], [1, 2]), ([1, 2], [1, 2]), ([0, 1], [1, 1])]
    found, bytes_down = [], []
    for t, (ids, j) in enumerate(turns):
        bytes_down.append(m.traffic(shared, m.init(3)[1])[0])
        shared = m.server(shared, Told(mlp, j), Participants(np.array(ids), np.array([9] * len(ids)), t, 0))
        found.append(int(shared.calm))
    assert found == [0, 0, 0, 1, 0, 1, 2, 3] and shared.ID.tolist() == [1, 1, 2]
    part = 4 * (mlp.size - mlp.phi.stop + 1)
    assert bytes_down == [whole] * 7 + [whole - 2 * part]
    assert whole == 4 * (mlp.phi.stop + 1) + 3 * part


def test_books_and_simulated_time_count_a_single_part_in_the_same_round(tmp_path, cache):
    """Identities are final from round 3 on: known after the first, and unchanged in the second."""
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({
        "rounds": 4, "method": {"name": "fedcps", "layers": 1, "stable": 1, "subset": 1},
        "model": {"name": "mlp", "hidden": 8},
        "data": {"clients": 4, "cache": str(cache)}, "train": {"lr": 1e-6, "batch": 50},
        # computing takes no time
        "edge": {"cycles": 1e-9, "bandwidth": 1e3}}))
    assert run_alone(str(config), [], str(tmp_path / "run")) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    sent = [8 * 2 ** 20 * line["mib_per_client_round"] for line in lines]
    assert sent[0] == sent[1] > sent[2] == sent[3]
    assert [1e3 * line["simulated_seconds_round"] for line in lines] == pytest.approx(sent)
    # Identities that are final are not chosen, neither after a new start: no base and three parts are passed through.
    for name, starts in (("timed", [()]), ("halves", [["rounds=2"], []])):
        for words in starts:
            assert run_alone(str(config), ["edge.cycles=1e6", *words], str(tmp_path / name), resume="auto") == 0
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        took = [line["T_comp"] for line in lines]
        assert took[0] == took[1] and took[2] == took[3]
        # E = 1 epoch of the whole network, and for the choice a third of it for the base and of it for each part
        assert took[0] == pytest.approx((1 + 4 / 3) * took[2])


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_final_identities_are_not_chosen_anew(mlp, federation, engine):
    from fedmpi.engines.loop import Loop
    from fedmpi.engines.vmap import Vmap
    lab = Lab(method("fedcps", mlp, stable=1, layers=1), federation, engine={"loop": Loop, "vmap": Vmap}[engine]())
    lab.go(1)
    wrong = (lab.shared.ID + 1) % 3
    lab.shared = lab.shared._replace(ID=wrong, calm=torch.tensor(1))
    assert lab.round(1).facts["clusters"].tolist() == wrong.tolist()
    lab.shared = lab.shared._replace(calm=torch.tensor(0))
    assert lab.round(2).facts["clusters"].tolist() != wrong.tolist()


def test_clients_choose_on_another_part_of_their_samples_every_round(mlp, federation):
    local = Lab(method("fedcps", mlp), federation).group.plan_training
    first, second = (batch_plan.draw_subset(local(t), 2, 1, 57, .5, False, False) for t in (0, 1))
    assert len(first) == len(second) == 28 and set(first) != set(second)


def test_bad_settings_are_refused_in_a_line(mlp):
    with pytest.raises(BadInput, match=r"^method.layers = 3: this network has 2 blocks \(fc1, fc2\); lower it$"):
        method("fedcps", mlp, layers=3)
    with pytest.raises(BadInput, match=r"^method.lam_min = 2.0: more than lam_max = 1.0; lower it$"):
        method("fedcps", mlp, lam_min=2., lam_max=1.)
    with pytest.raises(BadInput, match=r"^method.lam = 20.0: not between lam_min = 0.001 and lam_max = 10.0, "):
        method("fedcps", mlp, lam=20.)
    assert method("fedcps", mlp, lam=0., lam_min=.5).lam == 0


def test_the_books_tell_lam_of_few_shot_clients_and_of_others(tmp_path, cache):
    """The books have lam of each client in every evaluated round, also if the run was interrupted."""
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({
        "rounds": 4, "method": {"name": "fedcps", "layers": 1, "lam_max": 30.}, "model": {"name": "mlp", "hidden": 8},
        "data": {"clients": 20, "cache": str(cache), "partition": {"name": "few_shot", "gamma": .3}},
        "train": {"lr": .05, "batch": 5, "participation": .6}}))
    for folder, overrides, resume in (("a", [], None), ("b", ["rounds=2"], None), ("b", [], "auto")):
        assert run_alone(str(config), overrides, str(tmp_path / folder), resume) == 0
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    for name in ("lam_mean", "lam_few_shot", "lam_other"):
        assert lines[0][name] == pytest.approx(.1)
    assert lines[-1]["lam_few_shot"] > 1.5 * lines[-1]["lam_other"]
    one, other = (read_history(tmp_path / folder / "history.h5")["lam"] for folder in "ab")
    np.testing.assert_array_equal(one, other)
    assert one.shape == (4, 20) and np.isnan(one[0]).sum() == 8 and np.isnan(one).sum(1).tolist()[-1] < 8
    assert np.nanmean(one[-1]) == pytest.approx(lines[-1]["lam_mean"])
