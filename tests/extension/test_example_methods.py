"""The methods of examples/methods/: they keep the contract, and follow their formulas as plain PyTorch has them."""
from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.method import nbytes
from fedmpi.models.build import build_model
from fedmpi.testing import check_method
from tests.engines.test_own_loss_mode import WithBatchNorm
from tests.federations import TRAIN, Lab, apart, method
from tests.methods.reference import Reference
from tests.methods.trial import mean, near

pytestmark = pytest.mark.slow("runs of every example on several ranks")

FOLDER = Path(__file__).parents[2] / "examples" / "methods"
CLASSES = {"fedadam": "FedAdam", "scaffold": "Scaffold", "moon": "Moon", "running_means": "RunningMeans",
           "hypernetwork": "Hypernetwork", "krum": "Krum"}
SPECIAL = {"hypernetwork": {"skip": {"renumbering": "the embeddings are drawn by the clients' numbers"}},
           "krum": {"settings": {"m": 1}, "others": {"f": 3}}}
ROUNDS = 3


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def find(name):
    return getattr(importlib.import_module(name), CLASSES[name])


@pytest.fixture
def lab(mlp, federation):
    """Make a laboratory of an example after three rounds, and the plain reference for it."""
    def make(name, engine=None, train=None, **settings):
        found = Lab(find(name)(**settings).with_model(mlp), federation, engine, train, share=.6).go(ROUNDS)
        return found, Reference(mlp, federation, found.config)
    return make


def test_no_example_is_left_out():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_it_keeps_the_contract(name):
    assert check_method(f"{name}:{CLASSES[name]}", **SPECIAL.get(name, {})).passed


@pytest.mark.parametrize("name, eta", [("fedadam", .1), ("scaffold", .5), ("scaffold", 2.)])
def test_running_statistics_are_averaged_whatever_the_steps_of_the_server(name, eta, federation):
    model = build_model(WithBatchNorm(), (64,), np.dtype("float32"), 10, seed=5)
    found = Lab(find(name)(eta=eta).with_model(model), federation, Loop(), share=.6).go(ROUNDS)
    mean = found.rows().w.mean()
    for part in model.buffers:
        assert torch.equal(found.shared.w[part], mean[part])
        assert name == "fedadam" or not found.shared.c[part].any()
    assert (found.shared.w[model.blocks["1.running_var"]] > 0).all()


def test_fedadam_is_adam_at_the_server(lab):
    found, ref = lab("fedadam", eta=.05)
    w, m, v = ref.start, 0., 1e-3 ** 2
    for t in range(ROUNDS):
        g = mean([ref.sgd(w, ref.batches(i, t), t) for i in ref.who(t).ids], None) - w
        m, v = .9 * m + .1 * g, .99 * v + .01 * g ** 2
        w = w + .05 * m / (v ** .5 + 1e-3)
    for field, expected in zip(found.shared, (w, m, v), strict=True):
        near(field, expected)
    assert found.method.traffic(found.shared, found.up) == 2 * (4 * found.method.model.size,)


@pytest.mark.parametrize("f, m", [(1, 1), (0, 2), (3, 9)])
def test_krum_averages_the_models_with_the_nearest_neighbours(lab, f, m):
    found, ref = lab("krum", f=f, m=m)
    w = ref.start
    for t in range(ROUNDS):
        models = [ref.sgd(w, ref.batches(i, t), t) for i in ref.who(t).ids]
        near_ones = max(1, len(models) - f - 2)
        scores = [sum(sorted(float((a - b).square().sum()) for b in models if b is not a)[:near_ones]) for a in models]
        w = mean([models[i] for i in sorted(range(len(models)), key=scores.__getitem__)[:m]], None)
    near(found.shared.w, w)


@pytest.mark.parametrize("train", [TRAIN, replace(TRAIN, steps=7)], ids=["epochs", "steps"])
@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
def test_scaffold_counts_steps_and_clients(lab, engine, train):
    found, ref = lab("scaffold", engine, train)
    w, c, own = ref.start, torch.zeros(1210), {i: torch.zeros(1210) for i in range(8)}
    for t in range(ROUNDS):
        ids, sent, changes = ref.who(t).ids, [], []
        for i in ids:
            y, steps = w, 0
            for x, labels in ref.batches(i, t):
                module = ref.network(y)
                F.cross_entropy(module(x), labels).backward()
                g = torch.cat([p.grad.flatten() for p in module.parameters()])
                y, steps = y - ref.lr(t) * (g + c - own[i]), steps + 1
            new = own[i] - c + (w - y) / (steps * ref.lr(t))
            sent.append(y)
            changes.append(new - own[i])
            own[i] = new
        w, c = mean(sent, None), c + len(ids) / 8 * mean(changes, None)
    near(found.shared.w, w)
    near(found.shared.c, c, 1e-4)
    for i in range(8):
        near(found.mine(i).c, own[i], 1e-4)


@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
def test_moon_contrasts_the_features_with_those_of_two_models(lab, engine):
    found, ref = lab("moon", engine, mu=2., tau=.3)
    w, own = ref.start, dict.fromkeys(range(8), ref.start)
    for t in range(ROUNDS):
        who, sent = ref.who(t), []
        for i in who.ids:
            module, models = ref.network(w), [ref.network(w), ref.network(own[i])]
            for x, labels in ref.batches(i, t):
                z, (near_to, far_from) = features(module, x), [features(model, x).detach() for model in models]
                a, b = ((F.normalize(z) * F.normalize(other)).sum(1) / .3 for other in (near_to, far_from))
                loss = F.cross_entropy(module.fc2(z), labels) - 2. * (a.exp() / (a.exp() + b.exp())).log().mean()
                module.zero_grad()
                loss.backward()
                with torch.no_grad():
                    for p in module.parameters():
                        p -= ref.lr(t) * p.grad
            own[i] = torch.cat([p.detach().flatten() for p in module.parameters()])
            sent.append(own[i])
        w = mean(sent, who.sizes)
    near(found.shared.w, w)
    for i in range(8):
        near(found.mine(i).w, own[i])


@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
def test_running_means_have_the_gradient_of_their_loss_and_the_runs_momentum(lab, engine):
    found, ref = lab("running_means", engine, replace(TRAIN, momentum=.9), lam=2., mu=.3)
    w, whole, own = ref.start, torch.zeros(16), dict.fromkeys(range(8), torch.zeros(16))
    for t in range(ROUNDS):
        who, sent = ref.who(t), []
        for i in who.ids:
            module = ref.network(w)
            optimiser = torch.optim.SGD(module.parameters(), ref.lr(t), momentum=.9)
            for x, labels in ref.batches(i, t):
                z = module[:-1](x) if isinstance(module, torch.nn.Sequential) else features(module, x)
                m = .7 * own[i] + .3 * z.mean(0)
                loss = F.cross_entropy(module.fc2(z), labels) + 2. * ((m - whole) ** 2).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                own[i] = m.detach()
            sent.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
        w, whole = mean(sent, who.sizes), mean([own[i] for i in who.ids], who.sizes)
    near(found.shared.w, w)
    near(found.shared.M, whole)


def features(module, x):
    """Return what the last layer of a module takes."""
    taken = []
    handle = module.fc2.register_forward_pre_hook(lambda layer, given: taken.append(given[0]))
    module(x)
    handle.remove()
    return taken[0]


OPTIMIZERS = [{}, {"momentum": .9, "nesterov": True, "weight_decay": .01}, {"optimizer": "adam", "lr": .003},
              {"optimizer": "adamw", "lr": .003, "weight_decay": .1}, {"clip_norm": .5, "steps": 5}]


@pytest.mark.parametrize("options", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
def test_without_a_pull_they_are_fedavg_by_any_optimizer(lab, mlp, federation, engine, options):
    train = replace(TRAIN, **options)
    found, _ = lab("running_means", engine, train, lam=0.)
    plain = Lab(method("fedavg", mlp), federation, train=train, share=.6).go(ROUNDS)
    near(found.shared.w, plain.shared.w, 1e-6)


def test_a_hypernetwork_sends_each_client_its_own_model(lab):
    found, ref = lab("hypernetwork", eta=.5)
    first = found.method.init(8)[0]
    v, A, own = [*first.v], first.A, dict.fromkeys(range(8), ref.start)
    for t in range(ROUNDS):
        ids, deltas = ref.who(t).ids, []
        for i in ids:
            w = ref.start + A @ v[i]
            own[i] = ref.sgd(w, ref.batches(i, t), t)
            deltas.append(own[i] - w)
        A, v = (A + .5 * sum(torch.outer(d, v[i]) for d, i in zip(deltas, ids, strict=True)) / len(ids),
                [v[i] + .5 * A.T @ deltas[list(ids).index(i)] if i in ids else v[i] for i in range(8)])
    near(found.shared.A, A)
    near(found.shared.v, torch.stack(v))
    for i in range(8):
        near(found.mine(i).w, own[i])
    down, up = found.method.traffic(found.shared, found.up)
    assert down == up == 4 * found.method.model.size and nbytes(found.shared) > 4 * down


CONFIG = ("method={name: 'fedadam:FedAdam', eta: .05}", "method={name: 'hypernetwork:Hypernetwork'}")


@pytest.mark.parametrize("override", CONFIG)
def test_runs_of_one_and_three_ranks_and_after_a_restart_are_equal(bench, override):
    name = override[15:18]
    assert bench.run(3, f"{name}-three", override).returncode == 0
    assert bench.lead(f"{name}-one", override, "rounds=2") == 0
    assert bench.lead(f"{name}-one", override, resume="auto") == 0
    three, one = bench.result(f"{name}-three"), bench.result(f"{name}-one")
    assert three["digest"] == one["digest"] and one["rounds"] == 3
    if name == "fed":
        return
    # the server sends no field of Shared, and each participant's model once, if it does not host the client itself
    sent = [line["bytes_sent_by_server"] for line in bench.metrics(f"{name}-three")]
    assert sent == 3 * [6 * 4 * 1210]
    assert all(line == 0 for line in [row["bytes_sent_by_server"] for row in bench.metrics(f"{name}-one")])


def test_both_engines_agree_on_what_scan_and_class_sums_of_functions_give(lab):
    for name in CLASSES:
        assert apart(lab(name, Loop())[0].state(), lab(name, Vmap())[0].state()) < 1e-5
