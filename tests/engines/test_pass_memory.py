"""A pass of all samples through a model of the server's is made once, to evaluate a client and to train it next."""
from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmpi.engines import pass_memory
from fedmpi.engines.cohort import Cohort
from fedmpi.engines.loop import Loop
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.outside_vmap import share
from fedmpi.engines.pass_memory import PassMemory
from fedmpi.engines.vmap import Vmap
from fedmpi.models.flat import Model, Net
from tests.clients.verbs import Bench
from tests.federations import Digits, Lab, method, mlp


def choose(model, shared, mine, data):
    """As IFCA, FedAH and IFCA-CAM begin: the loss, the features, and the loss beside another model's logits."""
    features = data.with_features(model.base, shared[model.phi])
    return torch.stack([data.mean_loss(model, shared), features.mean_loss(model.head, shared[model.h]),
                        data.with_added_logits(model, shared).mean_loss(model, shared)])


@pytest.fixture
def made(monkeypatch):
    """The number of passes of all samples that were made so far."""
    count = [0]
    for kind in (LoopData, Cohort):
        def counted(self, *args, make=kind._pass_samples):
            count[0] += 1
            return make(self, *args)
        monkeypatch.setattr(kind, "_pass_samples", counted)
    return count


@pytest.fixture(params=[Loop, Vmap], ids=["loop", "vmap"])
def engine(request):
    return request.param()


@pytest.fixture
def bench():
    return Bench()


def evaluate(bench, engine, verb=choose, **local):
    bench.passes.begin([bench.shared], fills=True)
    return bench.run(engine, verb, **local)


def train(bench, engine, verb=choose, **local):
    bench.passes.begin([bench.shared], fills=False)
    return bench.run(engine, verb, **local)


def assert_equal(a, b):
    assert a.keys() == b.keys() and all(torch.equal(a[c], b[c]) for c in a)


def test_a_pass_is_made_once(bench, engine, made):
    """Also if batches, rates and rounds are others; the results keep their bits."""
    fresh = train(bench, engine)
    evaluated = evaluate(bench, engine)
    trained = train(bench, engine, round=8, batch=3, lr=.1)
    # The head passes features, which are not the samples. vmap computes a loss in another way than logits to train on.
    each = [5, 3, 1] if engine.name == "loop" else [5, 4, 1]
    times = len(bench.clients) if engine.name == "loop" else 1
    assert made[0] == sum(each) * times
    assert_equal(fresh, evaluated)
    assert_equal(fresh, trained)


def test_training_alone_keeps_nothing(bench, engine, made):
    train(bench, engine)
    once = made[0]
    train(bench, engine)
    assert made[0] == 2 * once and not bench.passes.known


@pytest.mark.parametrize("engine, passes", [(Loop(), 2), (Vmap(), 5)], ids=["loop", "vmap"])
def test_clients_that_train_without_the_others(bench, made, engine, passes):
    """Engine loop recalls each client's pass (2 are those of the head). The bits of vmap may depend on who is computed
    at once, so it makes all of them."""
    fresh = bench.run(engine, choose, clients=[0, 2])
    evaluate(bench, engine)
    bench.passes.begin([bench.shared], fills=False)
    before = made[0]
    assert_equal(fresh, bench.run(engine, choose, clients=[0, 2]))
    assert made[0] - before == passes


def test_other_clients_have_other_passes(bench, engine):
    fresh = bench.run(engine, choose, clients=[2, 3])
    bench.passes.begin([bench.shared], fills=True)
    bench.run(engine, choose, clients=[0, 1])
    assert_equal(fresh, bench.run(engine, choose, clients=[2, 3]))


def test_a_table_is_not_its_first_row():
    """It begins where the row begins, which vmap hands to all clients as a view."""
    passes, net = PassMemory(), Bench().model
    table = net.start.repeat(3, 1)
    passes.begin([table], fills=True)
    row = share(table[0], 3)
    assert row.data_ptr() == table.data_ptr() and row.shape == table.shape
    for w in (table, row):
        passes.recall((0, 1, 2), net, w, lambda w=w: w[:, :1] * 1)
    assert len(passes.known[0, 1, 2]) == 2


def test_another_model_is_another_pass(bench, engine, made):
    old = evaluate(bench, engine)
    bench.shared = bench.shared + .1
    found = train(bench, engine)
    bench.passes.forget()
    assert_equal(found, train(bench, engine))
    assert not any(torch.equal(old[c], found[c]) for c in old)


def test_a_model_that_was_changed_in_place_is_another_pass(bench, engine):
    old = evaluate(bench, engine)
    bench.shared += .1
    found = train(bench, engine)
    bench.passes.forget()
    assert_equal(found, train(bench, engine))
    assert not any(torch.equal(old[c], found[c]) for c in old)


def test_parts_of_the_samples_and_features_are_other_samples(bench, engine):
    """Their passes are neither kept nor taken for those of all samples."""
    def half(model, shared, mine, data):
        part = data.subset(.5, 3)
        return torch.stack([part.mean_loss(model, shared),
                            part.with_features(model.base, shared[model.phi]).mean_loss(model.head, shared[model.h])])
    fresh = train(bench, engine, half)
    evaluate(bench, engine)
    assert_equal(fresh, train(bench, engine, half))
    known = {whose: len(passes) for whose, passes in bench.passes.known.items()}
    evaluate(bench, engine, half)
    assert {whose: len(passes) for whose, passes in bench.passes.known.items()} == known


def test_a_model_of_the_clients_own_is_not_kept(bench, engine):
    evaluate(bench, engine, lambda model, shared, mine, data: data.mean_loss(model, mine.w))
    evaluate(bench, engine, lambda model, shared, mine, data: data.mean_loss(model, shared + 0))
    evaluate(bench, engine, lambda model, shared, mine, data: data.mean_loss(lambda w, x: model(w, x), shared))
    assert not bench.passes.known


def test_another_network_with_the_same_weights_is_another_pass(bench, engine):
    def other(model, shared, mine, data):
        return data.mean_loss(Net(model.module), shared)
    evaluate(bench, engine)
    known = len(bench.passes.known)
    kept = sum(map(len, bench.passes.known.values()))
    evaluate(bench, engine, other)
    assert sum(map(len, bench.passes.known.values())) > kept and len(bench.passes.known) == known


def test_networks_of_unknown_layers_are_not_kept(engine):
    """Theirs may draw random numbers in each pass."""
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x)
    bench = Bench(net=Model(lambda: nn.Sequential(nn.Linear(64, 5), Own(5, 10)), torch.zeros(2, 64), 0))
    evaluate(bench, engine)
    assert {known.net for passes in bench.passes.known.values() for known in passes} == {bench.model.base}


def test_so_many_bytes_are_kept(bench, engine, made, monkeypatch):
    monkeypatch.setattr(pass_memory, "MOST_BYTES_KEPT", 4 * 10 * 66)
    fresh = evaluate(bench, engine)
    kept = sum(known.outputs.nbytes for passes in bench.passes.known.values() for known in passes)
    assert bench.passes.bytes == kept <= pass_memory.MOST_BYTES_KEPT
    before = made[0]
    assert_equal(fresh, train(bench, engine))
    assert made[0] > before
    bench.passes.forget()
    assert bench.passes.bytes == 0 and not bench.passes.known


def run_out_of_memory_once(engine, memory, monkeypatch):
    """Let the engine have no memory for the clients that it computes first. Return a list of how many it tries at
    once; after the first, `memory` has to be empty."""
    assert memory.known
    together, tried = engine._together, []

    def short(function, clients, *args):
        tried.append(len(clients))
        if len(tried) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert not memory.known
        return together(function, clients, *args)
    monkeypatch.setattr(engine, "_together", short)
    return tried


def test_passes_are_forgotten_when_memory_is_short(bench, monkeypatch):
    engine = Vmap()
    fresh = evaluate(bench, engine)
    tried = run_out_of_memory_once(engine, bench.passes, monkeypatch)
    found = train(bench, engine)
    assert tried == [5, 2, 2, 1]
    assert all(torch.allclose(found[c], fresh[c], atol=1e-6) for c in fresh)


def test_the_memory_of_a_model_that_is_gone_is_not_another_models():
    """It is held, so that no later tensor lies where it lay."""
    passes, net = PassMemory(), Bench().model
    w = net.start.clone()
    passes.begin([w], fills=True)
    passes.recall(0, net, w[:], lambda: torch.ones(1))
    place = w.data_ptr()
    del w
    assert all(torch.empty_like(net.start).data_ptr() != place for _ in range(50))


@pytest.mark.parametrize("name, recalled", [("ifca", 3), ("fedah", 1), ("fedmhc_ah", 1), ("ifca_cam", 4)])
def test_a_run_makes_fewer_passes_and_keeps_its_digest(name, recalled, made, monkeypatch):
    """So many passes of each of 6 clients are recalled in the second and the third round."""
    settings = {"k": 3} if name.startswith("ifca") else {}
    settings |= {"warm_up": 0} if name == "ifca_cam" else {}

    def run():
        before = made[0]
        lab = Lab(method(name, mlp(), **settings), Digits((20, 1, 11, 3, 10, 30))).go(3, evaluates=True)
        return lab.digest(), made[0] - before
    digest, fewer = run()
    monkeypatch.setattr(pass_memory, "MOST_BYTES_KEPT", 0)
    assert run() == (digest, fewer + 2 * 6 * recalled)
