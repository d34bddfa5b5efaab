"""`data.once` on each kind of data, and in runs of the methods that compute a mix once, to evaluate a client and to
train it next."""
from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from fedmpi.config.schema import Data
from fedmpi.engines import result_memory
from fedmpi.engines.loop import Loop
from fedmpi.engines.result_memory import ResultMemory
from fedmpi.engines.vmap import Vmap
from fedmpi.faults import Faults
from fedmpi.models.flat import Net
from tests.clients.verbs import NUMBER, Bench, Mine
from tests.engines.test_pass_memory import assert_equal
from tests.engines.test_result_memory import times, train
from tests.federations import TRAIN, Digits, Lab, View, method, mlp


def derive(kind, model, shared, data):
    """Return the data of a kind, and the network that takes them."""
    if kind == "features":
        return data.with_features(model.base, shared[model.phi]), model.head
    if kind == "features of another network":
        return data.with_features(Net(nn.Sequential(model.base.module, nn.Tanh())), shared[model.phi]), model.head
    if kind == "features of other weights":
        return data.with_features(model.base, .5 * shared[model.phi]), model.head
    if kind == "other features":
        return data.with_features(lambda w, x: 2. * model.base(w, x), shared[model.phi]), model.head
    if kind == "features of features":
        return data.with_features(lambda w, x: -x, shared).with_features(model.base, shared[model.phi]), model.head
    if kind == "added logits":
        return data.with_added_logits(model, shared), model
    if kind == "other batches":
        return data.with_batches(None, 9), model
    if kind == "part":
        return data.subset(.5, 3), model
    return data, model


KINDS_OF_DATA = ["features", "features of another network", "features of other weights", "other features",
                 "features of features", "added logits", "part", "other batches", "samples"]


@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
@pytest.mark.parametrize("kind", KINDS_OF_DATA)
def test_each_kind_of_data_has_results_of_its_own(engine, kind):
    """After all kinds were evaluated, each is computed as without any memory."""
    class Derived:
        calls = 0

        def learn(self, w, data):
            self.calls += 1
            return data.descend(self.net, w)

        def of(self, kind):
            def verb(model, shared, mine, data):
                data, self.net = derive(kind, model, shared, data)
                return data.once(self.learn, mine.w[model.h] if self.net is model.head else mine.w)
            return verb
    author, bench = Derived(), Bench()
    fresh = train(bench, engine, author.of(kind))
    bench.results.begin(NUMBER, fills=True)
    for other in KINDS_OF_DATA:
        bench.run(engine, author.of(other))
    before = author.calls
    assert_equal(fresh, train(bench, engine, author.of(kind)))
    # networks and functions that are made anew are others each time; results on a part of the samples are not kept
    again = kind in ("features of another network", "other features", "features of features", "part")
    assert author.calls - before == times(bench, engine) * again


@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
def test_a_message_may_change_the_result(engine):
    """Clients are evaluated without one."""
    class Told:
        def learn(self, w, data):
            return w if data.message is None else w + data.message.w
    told, bench = Told(), Bench()

    def verb(model, shared, mine, data):
        return data.once(told.learn, mine.w)
    bench.results.begin(NUMBER, fills=True)
    bench.run(engine, verb)
    bench.results.begin(NUMBER, fills=False)
    bench.messages = {c: Mine(torch.ones_like(bench.shared), torch.tensor(0.)) for c in bench.clients}
    found = bench.run(engine, verb)
    assert all(torch.equal(found[c], bench.store.read(c).w + 1.) for c in bench.clients)


# a learning rate that stays as it is
STEADY = dataclasses.replace(TRAIN, lr_decay=1.)
RUNS = [("fedala", {}), ("fedala", {"p": 4}), ("fedah", {}), ("fedah", {"mix_everyone": True}), ("fedmhc_ah", {}),
        ("pfedcam", {"K": 2})]


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("name, settings", RUNS, ids=[f"{name}-{number}" for number, (name, _) in enumerate(RUNS)])
def test_a_run_computes_less_and_keeps_its_digest_and_its_books(name, settings, engine, monkeypatch):
    """The mixes that evaluate a client before the second and the third round are those of these rounds, and as many
    steps are in the books."""
    recalled = [0]

    def recall(self, *arguments, find=ResultMemory.recall):
        found = find(self, *arguments)
        recalled[0] += found is not None
        return found
    monkeypatch.setattr(ResultMemory, "recall", recall)

    def run(train=STEADY):
        recalled[0] = 0
        engines = {"loop": Loop, "vmap": Vmap}
        lab = Lab(method(name, mlp(), **settings), Digits((20, 1, 11, 3, 10, 30)), engines[engine](), train)
        lab.go(3, evaluates=True)
        return lab.digest(), lab.group.counter.take().tolist(), lab.evaluated.tolist()
    found = run()
    assert recalled[0] == 2 * (6 if engine == "loop" else 1)
    decaying = run(TRAIN)
    # the round has another learning rate, which a function may use, than the evaluation before it
    assert recalled[0] == 0
    monkeypatch.setattr(result_memory, "MOST_RESULT_BYTES", 0)
    assert run() == found and run(TRAIN) == decaying and recalled[0] == 0


@pytest.mark.parametrize("share, faults", [(.5, Faults()), (1., Faults(bad_update="skip", drop=.5))])
def test_a_round_of_some_clients_keeps_its_digest(share, faults, monkeypatch):
    def run():
        mixing = method("fedala", mlp(), mix_everyone=True)
        lab = Lab(mixing, Digits((20, 1, 11, 3, 10, 30)), train=STEADY, share=share, faults=faults)
        return lab.go(4, evaluates=True).digest()
    found = run()
    monkeypatch.setattr(result_memory, "MOST_RESULT_BYTES", 0)
    assert run() == found


class HeldBack(View):
    """A federation of which the last two clients are new."""

    def __init__(self, federation):
        super().__init__(federation)
        self.sizes = federation.sizes[:-2]


@pytest.mark.parametrize("engine", [Loop, Vmap])
def test_new_clients_are_evaluated_beside_what_is_kept(engine):
    """Neither do they take its place, nor is kept what they never train with."""
    federation = HeldBack(Digits((20, 1, 11, 3, 10, 30)))
    lab = Lab(method("fedah", mlp()), federation, engine(), data=Data(clients=6, new_clients=2)).go(1, evaluates=True)
    group, at_once = lab.group, engine is Vmap
    assert len(group.newcomers) == 2 and len(lab.evaluated) == 6
    for memory in (group.passes, group.results):
        assert len(memory.known) == (1 if at_once else 4)
