"""FedAMP: its limit, its formulas written a second time, and that the proximal term has a gradient."""
from __future__ import annotations

import json
import math
import statistics

import pytest
import torch

from fedmpi.comm.transport import Solo
from fedmpi.decision import decide
from fedmpi.errors import BadInput
from fedmpi.run_request import RunRequest
from tests.federations import apart, method
from tests.methods.plain import again
from tests.methods.trial import ROUNDS, near, network, run
from tests.runs import run_alone

forms = pytest.mark.parametrize("form", ["distance", "heuristic"])


def attention(models, alpha, sigma, own):
    """Return xi by loops; HeurFedAMP's if `own` is given."""
    n, xi = len(models), []
    if own is None:
        apart = [float(((models[i] - models[j]) ** 2).sum()) for i in range(n) for j in range(i)]
        sigma = sigma or statistics.median([d for d in apart if d > 0] or [0.])
        alpha = alpha or sigma / (n - 1)
    for i in range(n):
        row = []
        for j in range(n):
            if own is None and sigma == 0:
                row.append(0.)
            elif own is None:
                row.append(alpha / sigma * math.exp(-float(((models[i] - models[j]) ** 2).sum()) / sigma))
            else:
                row.append(math.exp((sigma or 1.) * float(models[i] @ models[j] / models[i].norm() / models[j].norm())))
        row[i] = 0.
        total = sum(row)
        row = [x / max(1., total) for x in row] if own is None else [x / total * (1 - own) for x in row]
        row[i] = 1 - sum(row)
        xi.append(row)
    return xi


def written(ref, pull, alpha, sigma, own):
    w = dict.fromkeys(range(len(ref.data)), ref.start)
    for t in range(ROUNDS):
        xi, before = attention([w[i].double() for i in sorted(w)], alpha, sigma, own), dict(w)
        for i in ref.who(t).ids:
            u = sum(x * before[j].double() for j, x in enumerate(xi[i])).float()
            w[i] = ref.sgd(w[i], ref.batches(i, t), t, penalty=lambda v, u=u: pull / 2 * ((v - u) ** 2).sum())
    return w


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("settings", [
    {}, {"pull": 16., "alpha": .05, "sigma": .3}, {"alpha": 1., "sigma": 1.}, {"pull": 3., "sigma": .02},
    {"pull": 6., "form": "heuristic"},
    {"form": "heuristic", "own": .6, "sigma": 40.}])
def test_the_formulas(settings):
    found = run("fedamp", **settings)
    s = {"pull": 1., "alpha": None, "sigma": None, "own": .2} | settings
    own = s["own"] if s.pop("form", "distance") == "heuristic" else None
    for c, w in written(again(found), s["pull"], s["alpha"], s["sigma"], own).items():
        near(found.mine(c).w, w)
        near(found.apply(found.method.personal, [c])[c], w)


@forms
def test_without_pull_it_is_local(form):
    free, alone = run("fedamp", pull=0., form=form), run("local")
    for c in range(8):
        near(free.mine(c).w, alone.mine(c).w, 1e-6)
    assert apart(run("fedamp", form=form).state(), alone.state()) > 1e-3


@forms
def test_the_proximal_term_has_a_gradient(form):
    """A stronger pull keeps a client closer to u_i, in every single round."""
    lab = run("fedamp", rounds=1, participation=1., form=form)
    gaps = [run("fedamp", rounds=1, participation=1., pull=pull, form=form).mine(2).w - lab.method.model.start
            for pull in (0., .5, 5., 15.)]
    lengths = [float(g.norm()) for g in gaps]
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] < lengths[0] / 3


def test_attention_is_paid_to_similar_models():
    """Of two planted groups of models, one of them larger, hardly any weight goes to the other group."""
    rows = torch.randn(9, 40, generator=torch.Generator().manual_seed(0)) * .02
    rows[:4, :20] += 1.
    rows[4:, 20:] += 1.
    for settings in ({"alpha": .1, "sigma": 1.}, {"form": "heuristic", "sigma": 50.}):
        xi = method("fedamp", network(), **settings).compute_attention(rows.double() @ rows.double().T)
        near(xi.sum(1), torch.ones(9, dtype=torch.float64), 1e-12)
        assert (xi >= 0).all() and (xi[:4, :4] > .01).all() and (xi[4:, 4:] > .01).all()
        assert xi[:4, 4:].sum() + xi[4:, :4].sum() < .02


@forms
def test_models_that_are_all_alike_have_no_negative_share(form):
    xi = method("fedamp", network(), form=form).compute_attention(torch.ones(30, 30, dtype=torch.float64))
    assert (xi >= 0).all()
    near(xi.sum(1), torch.ones(30, dtype=torch.float64), 1e-12)


def test_attention_may_be_as_sharp_as_one_likes():
    rows = torch.randn(4, 9, generator=torch.Generator().manual_seed(0)).double()
    amp = method("fedamp", network(), form="heuristic", sigma=1e5)
    xi = amp.compute_attention(rows @ rows.T)
    assert xi.isfinite().all() and (xi.topk(2).values.sum(1) > .999).all()
    assert amp.compute_attention(rows[:1] @ rows[:1].T).tolist() == [[1.]]


@pytest.mark.parametrize("scale", [1e-3, 1., 1e3])
def test_by_default_attention_follows_the_distances(scale):
    """Whatever the models' scale, a client's own model has part of the weight, and nearer models more of the rest."""
    rows = torch.randn(20, 40, generator=torch.Generator().manual_seed(0)).double() * scale
    xi = method("fedamp", network()).compute_attention(rows @ rows.T)
    own = xi.diagonal().clone()
    assert ((own > .5) & (own < .75)).all() and (xi > 0).all()
    far = torch.cdist(rows, rows).fill_diagonal_(torch.inf)
    assert torch.equal(far.argmin(1), xi.clone().fill_diagonal_(0).argmax(1))


def test_where_all_models_are_equal_they_are_not_mixed_and_equal_ones_do_not_fade_the_others():
    """They are equal before the first round, and most of them are while most clients have never taken part."""
    rows = torch.zeros(5, 3).double()
    for few in (rows, rows[:1]):
        assert torch.equal(method("fedamp", network()).compute_attention(few @ few.T), torch.eye(len(few)).double())
    rows[0] = 1.
    xi = method("fedamp", network()).compute_attention(rows @ rows.T)
    # the median of the four distances that are not 0 is 3, and so is each of them
    near(xi[0], torch.tensor([1 - 4 * math.exp(-1) / 4] + [math.exp(-1) / 4] * 4).double())
    wide = method("fedamp", network(), sigma=1.)
    near(wide.compute_attention(rows @ rows.T)[1, 2:], torch.tensor([.25] * 3).double())


@pytest.mark.parametrize("share", [1., .6])
def test_the_mean_weight_of_its_own_model_is_reported(share):
    """The mean is over all clients, whoever takes part and whoever is evaluated after training."""
    lab = run("fedamp", share, rounds=2)
    w = torch.stack([lab.mine(c).w for c in range(8)]).double() - lab.method.model.start
    expected = lab.method.compute_attention(w @ w.T)
    assert lab.round(2).facts["own_weight"] == pytest.approx(float(expected.diagonal().mean()), abs=1e-9)


def test_a_pull_that_overshoots_is_refused(tmp_path, cache):
    """Rank 0 refuses it before anything starts."""
    (tmp_path / "c.yaml").write_text(json.dumps({
        "rounds": 2, "method": {"name": "fedamp", "pull": 25.}, "model": {"name": "mlp", "hidden": 8},
        "data": {"clients": 9, "cache": str(cache)}, "train": {"lr": .04}}))
    with pytest.raises(BadInput, match=r"^method\.pull = 25\.0: with train\.lr = 0\.04 .* below 1 / lr = 25$"):
        decide(RunRequest(str(tmp_path / "c.yaml"), [], str(tmp_path / "run")), Solo())
    assert not (tmp_path / "run").exists()
    decide(RunRequest(str(tmp_path / "c.yaml"), ["method.pull=24.9"], str(tmp_path / "run")), Solo())


def test_a_client_receives_and_sends_one_model():
    lab = run("fedamp", rounds=0)
    assert lab.method.traffic(lab.shared, lab.up) == (4 * 1210, 4 * 1210)


def test_everybody_can_be_evaluated_after_training(tmp_path, cache):
    """Clients that do not take part get messages too, if all are evaluated as if they had taken part."""
    (tmp_path / "c.yaml").write_text(json.dumps({
        "rounds": 2, "method": "fedamp", "model": {"name": "mlp", "hidden": 8}, "evaluate": {"after_training": "all"},
        "data": {"clients": 9, "cache": str(cache), "partition": {"name": "dirichlet", "beta": .2}},
        "train": {"lr": .05, "participation": .5, "steps": 4}}))
    assert run_alone(str(tmp_path / "c.yaml"), [], str(tmp_path / "run")) == 0
