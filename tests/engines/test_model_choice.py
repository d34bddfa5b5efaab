"""A client that chooses the model of least loss leaves worse models out early, and chooses as full passes would."""
from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmpi.engines import model_choice
from fedmpi.engines.loop import Loop
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.model_choice import count_pieces
from fedmpi.engines.vmap import Vmap
from fedmpi.models.flat import Model
from fedmpi.models.precision import set_precision
from fedmpi.models.tables import find_lowest
from tests.clients.verbs import Bench
from tests.engines.test_loop import LOCAL
from tests.federations import Digits, cnn, mlp


@pytest.fixture
def in_pieces(monkeypatch):
    """Small networks and few samples, too, are passed in pieces."""
    monkeypatch.setattr(model_choice, "PRODUCTS_OF_A_PIECE", 1)
    monkeypatch.setattr(model_choice, "SAMPLES_OF_A_PIECE", 3)


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
def test_the_choice_is_that_of_full_passes(in_pieces, net, sigma, odd):
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


def test_worse_models_pass_few_samples(passed, in_pieces):
    """Of ten models, one is trained, as IFCA's on MNIST soon are."""
    model = cnn()
    data = make_data(480, model, batch=16, steps=200, lr=.05)
    models = model.starts(10)
    models[6] = data.descend(model, models[6])
    passed.clear()
    assert data.choose_model(model, models) == 6
    # not ten times as many as there are: a worse model is out after a piece or two
    assert sum(passed) < 4 * 480


def test_models_that_are_alike_take_their_full_passes(passed, in_pieces):
    model = mlp()
    data = make_data(96, model)
    models = model.start.repeat(3, 1)
    assert data.choose_model(model, models) == 0 and sum(passed) == 2 * 3 * 96


def test_samples_sorted_by_class_are_seen_from_all_classes(passed, in_pieces):
    """The first samples alone would tell for the model that knows their class and no other."""
    model = mlp()
    data = make_data(96, model, steps=100, lr=.1)
    order = data.y.argsort()
    data = make_data(96, model, steps=100, lr=.1, order=order)
    good, blind = data.descend(model, model.start), model.start.clone()
    blind[-10:] = torch.eye(10)[data.y[0]] * 30
    passed.clear()
    assert data.choose_model(model, torch.stack([blind, good])) == 1
    # the trained model was the first to pass all samples: the other one passed a single piece
    assert sorted(passed) == [6] * 17


@pytest.mark.parametrize("change, pieces", [
    ({}, 16), ({"y": torch.zeros(100)}, 1), ({"plain": False}, 1), ({"bf16": True}, 1), ({"n": 40}, 13), ({"n": 2}, 1)])
def test_when_samples_are_passed_in_pieces(in_pieces, change, pieces):
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x)
    model = mlp() if change.get("plain", True) else Model(lambda: nn.Sequential(Own(64, 10)), torch.zeros(2, 64), 0)
    set_precision("bf16" if "bf16" in change else "float32")
    try:
        y = change.get("y", torch.zeros(change.get("n", 100), dtype=torch.int64))
        assert count_pieces(model, y) == pieces
    finally:
        set_precision("float32")


def test_a_choice_is_made_once(in_pieces, passed):
    """To judge a client and to train it; not if the labels, the models or their number are others."""
    bench = Bench()
    bench.shared = bench.shared + .1 * torch.randn(6, len(bench.shared), generator=torch.Generator().manual_seed(2))

    def run(fills, verb=lambda model, shared, mine, data: data.choose_model(model, shared)):
        bench.passes.begin([bench.shared], fills)
        passed.clear()
        return bench.run(Loop(), verb), len(passed)
    fresh, work = run(False)
    judged, again = run(True)
    known, saved = run(False)
    assert fresh == judged == known and work == again
    # clients of 57, 11 and 10 samples choose by pieces; the others pass all at once, which is kept as well
    assert saved == 0

    def choose_fewer(model, shared, mine, data):
        return data.choose_model(model, shared[:2])
    run(True)
    assert all(z < 2 for z in run(False, choose_fewer)[0].values())
    run(True)
    federation = bench.federation
    expected = {}
    for client in range(5):
        s = federation.client(client)
        s.y_train[:] = (s.y_train + 1) % 10
    bench.get_training_samples = lambda c: tuple(map(torch.from_numpy, (
        federation.client(c).x_train, (federation.client(c).y_train + 1) % 10)))
    found, work = run(False)
    bench.passes.forget()
    expected, _ = run(False)
    assert found == expected and work > 0
    bench.shared += 1
    changed, work = run(False)
    assert work > 0


@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
def test_engines_choose_the_same_model(engine, in_pieces):
    bench = Bench(image=True)
    table = bench.shared + .1 * torch.randn(4, len(bench.shared), generator=torch.Generator().manual_seed(5))
    found = bench.run(engine, lambda model, shared, mine, data: data.choose_model(model, table))
    expected = bench.run(engine, lambda model, shared, mine, data: choose_by_losses(data, model, table))
    assert found == expected and len(set(map(int, found.values()))) > 1
