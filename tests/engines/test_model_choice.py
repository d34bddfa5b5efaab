"""A client that chooses the model of least loss leaves worse models out early, and chooses as full passes would."""
from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.engines import model_choice
from fedmpi.engines.loop import Loop
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.model_choice import Candidate, count_first, find_possible_best, spread_out
from fedmpi.engines.vmap import Vmap
from fedmpi.models.build import build_model
from fedmpi.models.flat import Model
from fedmpi.models.nets import FastText, LeNet5
from fedmpi.models.precision import set_precision
from fedmpi.models.tables import find_lowest
from tests.clients.verbs import Bench
from tests.engines.test_loop import LOCAL
from tests.federations import Digits, cnn, mlp


@pytest.fixture
def early(monkeypatch):
    """Small networks pass few samples, too, before they all pass."""
    monkeypatch.setattr(model_choice, "FEWEST_PRODUCTS", 1)
    monkeypatch.setattr(model_choice, "FEWEST_SAMPLES", 3)


@pytest.fixture
def passed(monkeypatch):
    """How many samples each pass through a network took."""
    found, forward = [], model_choice.run_forward
    for module in ("fedmpi.engines.model_choice", "fedmpi.engines.loop_data"):
        def counted(network, x):
            found.append(len(x))
            return forward(network, x)
        monkeypatch.setattr(f"{module}.run_forward", counted)
    return found


def make_data(n, model, order=slice(None), **local):
    """Return the data of a client of n samples of digits."""
    s = Digits((n,), image=model.module[0].__class__ is nn.Conv2d).client(0)
    x, y = (torch.from_numpy(v)[order] for v in (s.x_train, s.y_train))
    return LoopData(x, y, 0, LOCAL._replace(**local), model=model)


def choose_by_losses(data, net, models):
    return find_lowest(torch.stack([data.mean_loss(net, w) for w in models]))


# What stands at some places of the table: another's model, one that computes no numbers, or only very large ones.
@pytest.mark.parametrize("odd", ["none", "equal", "close", "nan", "inf", "all_nan", "zero", "huge"])
@pytest.mark.parametrize("sigma", [.01, .3, 3.])
@pytest.mark.parametrize("net", [mlp, cnn], ids=["mlp", "cnn"])
def test_the_choice_is_that_of_full_passes(early, net, sigma, odd):
    model = net()
    for seed, n in enumerate((1, 2, 3, 8, 31, 100, 250, 263)):
        generator = torch.Generator().manual_seed(seed)
        data = make_data(n, model)
        models = model.start + sigma * torch.randn(7, model.size, generator=generator)
        if odd == "equal":
            models[5] = models[2] = models[4]
        elif odd == "close":
            models[1:] = models[0] + 1e-7 * torch.randn(6, model.size, generator=generator)
        elif odd == "huge":
            models[3] = 1e6 * models[3]
        elif odd == "zero":
            models[3:] = 0.
        elif odd == "all_nan":
            models[:] = torch.nan
        elif odd != "none":
            models[[0, 3]] = float(odd)
        found = data.choose_model(model, models)
        assert found == choose_by_losses(data, model, models) and found.dtype == torch.int64 and found.ndim == 0


def test_worse_models_pass_few_samples(passed, early):
    """Of ten models, one is trained, as IFCA's on MNIST soon are."""
    model = cnn()
    data = make_data(480, model, batch=16, steps=600, lr=.1)
    models = model.starts(10)
    models[6] = data.descend(model, models[6])
    passed.clear()
    assert data.choose_model(model, models) == 6
    # not ten times as many: a worse model is out after few
    assert passed.count(15) == 10 and sum(passed) < 2 * 480


def test_losses_of_all_samples_and_the_largest_output():
    model, n = mlp(), 263
    data = make_data(n, model)
    model.bind(model.start)
    candidate = Candidate(model.start)
    with torch.no_grad():
        for upto in (3, 4, 260, n):
            candidate.take(model, data.x, data.y, upto)
        outputs = model.module(data.x)
    assert candidate.loss == pytest.approx(n * float(data.mean_loss(model, model.start)))
    assert candidate.largest == pytest.approx(float(outputs.abs().max())) and candidate.passed == n


def test_models_that_are_alike_take_their_full_passes(passed, early):
    model = mlp()
    data = make_data(96, model)
    models = model.start.repeat(3, 1)
    assert data.choose_model(model, models) == 0 and sum(passed) == 2 * 3 * 96


@torch.no_grad()
def test_large_outputs_allow_for_larger_errors(early):
    """The losses of two such models differ by less than rounding may make of them: both take full passes."""
    model = mlp()
    data = make_data(96, model)
    models = torch.stack([3e4 * model.start, 3e4 * model.start])
    models[1, -1] += 1.
    assert find_possible_best(model, models, data.x, data.y, 3) == [0, 1]
    assert len(find_possible_best(model, models / 3e4 * torch.tensor([[1.], [2.]]), data.x, data.y, 3)) == 1


def test_samples_sorted_by_class_are_seen_from_all_classes(passed, early):
    """The first samples alone would tell for the model that knows their class and no other."""
    model = mlp()
    order = make_data(96, model).y.argsort()
    data = make_data(96, model, steps=100, lr=.1, order=order)
    good, blind = data.descend(model, model.start), model.start.clone()
    blind[-10:] = torch.eye(10)[data.y[0]] * 30
    passed.clear()
    assert data.choose_model(model, torch.stack([blind, good])) == 1
    # the trained model was the first to pass all samples, and the other one passed few
    assert passed[:3] == [3, 3, 93] and sum(passed[3:]) < 10


def test_samples_that_are_hard_for_the_best_model_come_first(early, passed):
    """Of two models, both know all classes but one, of which the other is sure to be wrong."""
    model = Model(lambda: nn.Sequential(nn.Linear(64, 10)), torch.zeros(2, 64), 0)
    y = torch.arange(96) // 10
    data = dataclasses.replace(make_data(96, model), x=torch.eye(64)[y], y=y.clamp(max=9))
    best, other = torch.zeros(2, model.size)
    for w, right in (best, 0.), (other, -10.):
        table = w[:640].view(10, 64)
        table[range(10), range(10)] = 20.
        table[3, 3] = right
    assert data.choose_model(model, torch.stack([other, best])) == 1
    # two of the ten hard samples are enough
    assert passed == [3, 3, 93, 3]


def test_dropout_is_off(early):
    """Of equal models, those that drop fewer features would be chosen."""
    model = Model(lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(.5), nn.Linear(32, 10)),
                  torch.zeros(2, 64), 0)
    data = make_data(200, model)
    torch.manual_seed(0)
    model.module.train()
    assert data.choose_model(model, model.start.repeat(9, 1)) == 0


def test_models_without_any_loss_are_compared(early):
    model = mlp()
    data = make_data(200, model)
    data.y.zero_()
    sure = model.start.clone()
    sure[-10] = 300.
    assert float(data.mean_loss(model, sure)) == 0.
    assert data.choose_model(model, torch.stack([model.start, sure, sure])) == 1


@pytest.mark.parametrize("n", [*range(1, 70), 480, 525, 1000])
def test_beginnings_are_spread_over_all_samples(n):
    order = spread_out(n)
    assert order.sort().values.equal(torch.arange(n))
    for k in (n // 16, n // 3, n):
        gaps = order[:k].sort().values.diff(prepend=torch.tensor([-1]), append=torch.tensor([n]))
        assert k < 2 or gaps.max() <= 2 * n / k + 1


def test_rows_of_a_table_are_no_work():
    """They would make the passes of a text seem as costly as those of a large network of images."""
    model = build_model(FastText(4000, 32), (6,), np.dtype("int32"), 4, seed=0)
    y = torch.zeros(1000, dtype=torch.int64)
    lenet = build_model(LeNet5(), (28, 28, 1), np.dtype("uint8"), 10, 0)
    assert count_first(model, y) == 1000 and count_first(lenet, y) == 31


@pytest.mark.parametrize("change, first", [
    ({}, 5), ({"y": torch.zeros(160)}, 160), ({"plain": False}, 160), ({"bf16": True}, 160), ({"n": 40}, 3),
    ({"n": 2}, 2)])
def test_how_many_samples_each_model_passes_first(early, change, first):
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x)
    model = mlp() if change.get("plain", True) else Model(lambda: nn.Sequential(Own(64, 10)), torch.zeros(2, 64), 0)
    set_precision("bf16" if "bf16" in change else "float32")
    try:
        y = change.get("y", torch.zeros(change.get("n", 160), dtype=torch.int64))
        assert count_first(model, y) == first
    finally:
        set_precision("float32")


def test_a_choice_is_made_once(early, passed):
    """To evaluate a client and to train it; not if the labels, the models or their number are others."""
    bench = Bench()
    bench.shared = bench.shared + .1 * torch.randn(6, len(bench.shared), generator=torch.Generator().manual_seed(2))

    def run(fills, verb=lambda model, shared, mine, data: data.choose_model(model, shared)):
        bench.passes.begin([bench.shared], fills)
        passed.clear()
        return bench.run(Loop(), verb), len(passed)
    fresh, work = run(False)
    evaluated, again = run(True)
    known, saved = run(False)
    assert fresh == evaluated == known and work == again
    # clients of 57, 11 and 10 samples choose by pieces; the others pass all at once, which is kept as well
    assert saved == 0

    def choose_fewer(model, shared, mine, data):
        return data.choose_model(model, shared[:2])
    run(True)
    assert all(z < 2 for z in run(False, choose_fewer)[0].values())
    run(True)
    federation = bench.federation
    bench.get_training_samples = lambda c: tuple(map(torch.from_numpy, (
        federation.client(c).x_train, (federation.client(c).y_train + 1) % 10)))
    found, work = run(False)
    bench.passes.forget()
    expected, _ = run(False)
    assert found == expected and work > 0
    bench.shared += 1
    _, work = run(False)
    assert work > 0


@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
def test_engines_choose_the_same_model(engine, early):
    bench = Bench(image=True)
    table = bench.shared + .1 * torch.randn(4, len(bench.shared), generator=torch.Generator().manual_seed(5))
    found = bench.run(engine, lambda model, shared, mine, data: data.choose_model(model, table))
    expected = bench.run(engine, lambda model, shared, mine, data: choose_by_losses(data, model, table))
    assert found == expected and len(set(map(int, found.values()))) > 1
