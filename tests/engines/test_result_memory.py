"""What `data.once` computes to evaluate a client serves its next training, as if it were computed again."""
from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.engines import result_memory
from fedmpi.engines.batch_plan import Portion
from fedmpi.engines.loop import Loop
from fedmpi.engines.result_memory import is_equal
from fedmpi.engines.step_counter import EVALUATED, KINDS, PARTICIPANTS
from fedmpi.engines.vmap import Vmap
from fedmpi.models.flat import Model
from tests.clients.verbs import NUMBER, Bench
from tests.engines.test_pass_memory import assert_equal, run_out_of_memory_once


class Author:
    """A method whose verb trains the client's own weights. It counts how often that is computed."""

    def __init__(self):
        self.calls, self.net = 0, None

    def learn(self, w, strength, shared, data):
        self.calls += 1
        return data.with_batches(2, 5, kind="mix").descend(
            self.net, w, pull=[(shared, strength, None)], lr=.3, momentum=0.)

    def learn_more(self, *arguments):
        return self.learn(*arguments) + 1.

    def begin(self, model, shared, mine, data):
        self.net = model
        return data.once(self.learn, *mine, shared)


@pytest.fixture
def author():
    return Author()


@pytest.fixture(params=[Loop, Vmap], ids=["loop", "vmap"])
def engine(request):
    return request.param()


@pytest.fixture
def bench():
    return Bench()


def evaluate(bench, engine, verb, **local):
    bench.results.begin(NUMBER, fills=True)
    bench.counter.begin(EVALUATED)
    return bench.run(engine, verb, **local)


def train(bench, engine, verb, **local):
    bench.results.begin(NUMBER, fills=False)
    bench.counter.begin(PARTICIPANTS)
    return bench.run(engine, verb, **local)


def times(bench, engine):
    """How often a verb is called for all clients."""
    return len(bench.clients) if engine.name == "loop" else 1


def test_a_result_is_computed_once_and_its_steps_are_made_twice(bench, engine, author):
    fresh = train(bench, engine, author.begin)
    made = bench.counter.take()
    evaluated = evaluate(bench, engine, author.begin)
    assert bench.counter.take().reshape(3, -1)[EVALUATED, KINDS.index("judging")] == made.sum() > 0
    trained = train(bench, engine, author.begin)
    assert author.calls == 2 * times(bench, engine)
    assert bench.counter.take().tolist() == made.tolist()
    assert made.reshape(3, -1)[PARTICIPANTS, KINDS.index("mix")] == made.sum()
    assert_equal(fresh, evaluated)
    assert_equal(fresh, trained)


def test_what_is_recalled_may_be_changed(bench, engine, author):
    """A client keeps what it was given, and nothing else lies in the same memory."""
    fresh = evaluate(bench, engine, author.begin)

    def spoil(model, shared, mine, data):
        return author.begin(model, shared, mine, data).zero_()
    train(bench, engine, spoil)
    assert_equal(fresh, train(bench, engine, author.begin))
    assert author.calls == times(bench, engine)


def test_what_was_changed_since_is_computed_again(bench, author):
    """A client that is evaluated holds the kept tensor itself."""
    engine = Loop()
    fresh = train(bench, engine, author.begin)

    def spoil(model, shared, mine, data):
        return author.begin(model, shared, mine, data).zero_()
    evaluate(bench, engine, spoil)
    assert_equal(fresh, train(bench, engine, author.begin))
    assert author.calls == 3 * len(bench.clients)


def test_training_alone_keeps_nothing(bench, engine, author):
    train(bench, engine, author.begin)
    train(bench, engine, author.begin)
    assert author.calls == 2 * times(bench, engine) and not bench.results.known


def test_to_evaluate_again_forgets_what_was_known(bench, engine, author):
    evaluate(bench, engine, author.begin)
    evaluate(bench, engine, author.begin)
    assert author.calls == 2 * times(bench, engine)


def test_another_round_forgets_what_was_known(bench, engine, author):
    """So that nothing is held when it cannot serve any more."""
    evaluate(bench, engine, author.begin)
    bench.results.begin(NUMBER, fills=False)
    assert bench.results.known
    bench.results.begin(NUMBER + 1, fills=False)
    assert not bench.results.known and bench.results.bytes == 0


def test_clients_that_train_without_the_others(bench, engine, author):
    """The bits of vmap may depend on who is computed at once, so it computes again."""
    fresh = bench.run(engine, author.begin, clients=[0, 2])
    evaluate(bench, engine, author.begin)
    before = author.calls
    bench.results.begin(NUMBER, fills=False)
    assert_equal(fresh, bench.run(engine, author.begin, clients=[0, 2]))
    assert author.calls - before == (0 if engine.name == "loop" else 1)


def test_clients_of_equal_labels_and_states_have_other_samples(engine, author, monkeypatch):
    bench = Bench((10, 10))
    bench.store.write(1, bench.store.read(0))
    samples = bench.get_training_samples
    monkeypatch.setattr(bench, "get_training_samples", lambda c: (samples(c)[0], torch.zeros(10, dtype=torch.int64)))
    fresh = bench.run(engine, author.begin, clients=[1])
    bench.results.begin(NUMBER, fills=True)
    bench.run(engine, author.begin, clients=[0])
    assert_equal(fresh, bench.run(engine, author.begin, clients=[1]))


@pytest.mark.parametrize("change", [{"round": 8}, {"lr": .1}, {"batch": 3}, {"seed": 4}, {"steps": 5},
                                    {"drop_last": True}])
def test_other_settings_are_another_result(bench, engine, author, change):
    evaluate(bench, engine, author.begin)
    found = train(bench, engine, author.begin, **change)
    assert author.calls == 2 * times(bench, engine)
    bench.results.forget()
    assert_equal(found, train(bench, engine, author.begin, **change))


def test_a_part_of_the_steps_is_another_result(bench, engine, author):
    old = evaluate(bench, engine, author.begin)
    bench.portions = {0: Portion(1, 2)}
    found = train(bench, engine, author.begin)
    bench.results.forget()
    assert_equal(found, train(bench, engine, author.begin))
    assert not torch.equal(old[0], found[0])


@pytest.mark.parametrize("in_place", [True, False])
def test_another_model_of_the_servers_is_another_result(bench, engine, author, in_place):
    old = evaluate(bench, engine, author.begin)
    if in_place:
        bench.shared += .1
    else:
        bench.shared = bench.shared + .1
    found = train(bench, engine, author.begin)
    bench.results.forget()
    assert_equal(found, train(bench, engine, author.begin))
    assert not any(torch.equal(old[c], found[c]) for c in bench.clients[1:])


def test_another_state_of_the_client_is_another_result(bench, engine, author):
    old = evaluate(bench, engine, author.begin)
    for c in bench.clients[:2]:
        mine = bench.store.read(c)
        bench.store.write(c, mine._replace(w=mine.w + .1))
    found = train(bench, engine, author.begin)
    bench.results.forget()
    assert_equal(found, train(bench, engine, author.begin))
    assert not any(torch.equal(old[c], found[c]) for c in (0, 1))


def test_two_results_of_one_function(bench, engine, author):
    """A client may compute the same of several models."""
    def both(model, shared, mine, data):
        author.net = model
        return torch.cat([data.once(author.learn, w, mine.s, shared) for w in (mine.w, shared, mine.w)])
    fresh = train(bench, engine, both)
    assert_equal(fresh, evaluate(bench, engine, both))
    before = author.calls
    assert_equal(fresh, train(bench, engine, both))
    assert author.calls == before


def test_another_function_is_another_result(bench, engine, author):
    fresh = evaluate(bench, engine, author.begin)

    def more(model, shared, mine, data):
        return data.once(author.learn_more, *mine, shared)
    found = train(bench, engine, more)
    assert all(torch.equal(found[c], fresh[c] + 1.) for c in fresh)


@pytest.mark.parametrize("make, policy, kept", [
    (lambda: nn.Sequential(nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10)), None, True),
    (lambda: nn.Sequential(nn.Linear(64, 5), nn.Dropout(), nn.Linear(5, 10)), None, False),
    (lambda: nn.Sequential(nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, 10)), "local", False),
    (lambda: nn.Sequential(nn.Linear(64, 5), Own(5, 10)), None, False)], ids=["plain", "dropout", "batchnorm", "own"])
def test_what_may_depend_on_more_is_not_kept(author, make, policy, kept):
    """Dropout goes on drawing, running statistics go to the client's state, and layers of others may do anything."""
    engine, bench = Loop(), Bench((20, 10), net=Model(make, torch.zeros(2, 64), 0, policy=policy))

    def verb(model, shared, mine, data):
        w = author.begin(model, shared, mine, data)
        return data.descend(model, w)
    fresh = train(bench, engine, verb)
    evaluate(bench, engine, verb)
    assert bool(bench.results.known) is kept
    assert_equal(fresh, train(bench, engine, verb))


class Own(nn.Linear):
    """A layer that is not PyTorch's."""
    def forward(self, x):
        return super().forward(x)


@pytest.mark.parametrize("draw", [torch.seed, np.random.rand, random.random], ids=["torch", "numpy", "random"])
def test_what_draws_is_not_kept(bench, engine, author, draw):
    def learn(*arguments):
        draw()
        return author.learn(*arguments)

    def verb(model, shared, mine, data):
        author.net = model
        return data.once(learn, *mine, shared)
    evaluate(bench, engine, verb)
    assert not bench.results.known


def test_so_many_bytes_are_kept(bench, author, monkeypatch):
    engine = Loop()
    fresh = evaluate(bench, engine, author.begin)
    whole, each = bench.results.bytes, bench.shared.nbytes
    # the server's model counts once; of a client: its own and what was learned, a strength and labels
    assert whole == each + 5 * (2 * each + 4) + 8 * (57 + 1 + 11 + 3 + 10) and len(bench.results.known) == 5
    monkeypatch.setattr(result_memory, "MOST_RESULT_BYTES", whole - 1)
    evaluate(bench, engine, author.begin)
    assert len(bench.results.known) == 4 and bench.results.bytes < whole
    before = author.calls
    assert_equal(fresh, train(bench, engine, author.begin))
    assert author.calls == before + 1
    bench.results.forget()
    assert not bench.results.bytes and not bench.results.held and not bench.results.known


def test_a_view_for_many_clients_holds_one_model(bench, author):
    """Engine vmap sees the server's model as a row of each client."""
    evaluate(bench, Vmap(), author.begin)
    each = bench.shared.nbytes
    assert bench.results.bytes == each + 5 * (2 * each + 4) + 8 * 5 * 64


def test_results_are_forgotten_when_memory_is_short(bench, author, monkeypatch):
    engine = Vmap()
    evaluate(bench, engine, author.begin)
    tried = run_out_of_memory_once(engine, bench.results, monkeypatch)
    train(bench, engine, author.begin)
    assert tried == [5, 2, 2, 1]


def test_equal_numbers():
    """They may lie elsewhere; a transposed view of the same memory holds others."""
    square = torch.arange(4.).view(2, 2)
    assert is_equal(square, square[:]) and is_equal(square, square.clone())
    assert not is_equal(square, square.T) and not is_equal(square, square.clone().T)
    assert not is_equal(square, square.flatten()) and not is_equal(square, square.double())
    assert not is_equal(square, square + 1.)
