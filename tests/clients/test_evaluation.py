"""The measures of a rank's clients: on which samples, of which weights, and for which clients."""
from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedmpi.clients import evaluation
from fedmpi.clients import hosted as module
from fedmpi.config.schema import Checkpoint, Data, Evaluate, Server, StateSettings
from fedmpi.errors import BadInput, GivenUp
from fedmpi.faults import Attack
from fedmpi.methods.local import Local
from tests.federations import Digits, Lab, View, method, mlp

# The share of clients in each round: 5 of 8.
SHARE = .6
# A split with validation samples.
THREE = Data(split=(.5, .25, .25))


class Validated(View):
    """Clients whose validation part is a third of their training samples, with other labels."""

    def client(self, i: int):
        s = self.original.client(i)
        n = max(1, len(s.y_train) // 3)
        return s._replace(x_val=s.x_train[:n] * .5, y_val=(s.y_train[:n] + 1) % 10)


@pytest.fixture(scope="module")
def federation():
    return Validated(Digits())


@pytest.fixture
def lab(federation):
    def make(name="fedavg", on="test", after="participants", **sections):
        return Lab(method(name, mlp()), federation, share=SHARE, data=THREE,
                   evaluate=Evaluate(on=on, after_training=after), **sections)
    return make


def test_evaluation_is_given_up_before_the_next_client(lab):
    """Clients may train before they are evaluated."""
    run = lab(checkpoint=Checkpoint(grace=2.5)).go(1)
    seconds = iter((0., 2.5, 2.6))
    run.group.context.waits = lambda: next(seconds)
    with pytest.raises(GivenUp, match=r"more than 2.5 s ago \(checkpoint.grace\)"):
        run.group.evaluator.measure_clients(1, 8)
    assert next(seconds, None) is None


def test_a_rank_without_clients_needs_no_scratch_folder(lab):
    there = {"state": StateSettings(scratch="/nowhere")}
    assert lab(homes=np.ones(8, np.int64), **there).group.clients == []
    with pytest.raises(BadInput, match="state.scratch = /nowhere: no folder on "):
        lab(**there)


def measured(w, x, y) -> list[float]:
    """Return the measures of the mlp's weights w, computed by NumPy in double precision."""
    w, x = np.asarray(w, np.float64), np.asarray(x, np.float64)
    w1, b1, w2, b2 = w[:1024].reshape(16, 64), w[1024:1040], w[1040:1200].reshape(10, 16), w[1200:]
    logits = np.maximum(x @ w1.T + b1, 0) @ w2.T + b2
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]
    found, f1 = logits.argmax(1), []
    for c in set(y) | set(found):
        hit = ((found == c) & (y == c)).sum()
        f1.append(2 * hit / ((found == c).sum() + (y == c).sum()))
    return [(found == y).sum(), len(y), losses.sum(), np.mean(f1)]


def parts(federation, on, client):
    s = federation.client(client)
    return (s.x_val, s.y_val) if on == "validation" else (s.x_test, s.y_test)


@pytest.mark.parametrize("on", ["test", "validation"])
def test_clients_are_evaluated_on_the_part_that_is_asked_for(on, lab, federation):
    """They are measured before and after local training; fedbabu's three columns are of three different weights."""
    run = lab("fedbabu", on).go(1, evaluates=True)
    run.train(1, evaluates=True)
    table, whole = run.evaluate(2), run.method.add_head(run.shared.phi)
    tuned = dict(run.group.apply(run.method.personal, run.group.clients, run.group.shared, 2, for_evaluation=True))
    for client in run.group.clients:
        x, y = parts(federation, on, client)
        np.testing.assert_allclose(table[client, 0], [1, *measured(tuned[client], x, y)], rtol=1e-5)
        np.testing.assert_allclose(table[client, 2], [1, *measured(whole, x, y)], rtol=1e-5)
        # Validation samples are measured too, with the model that a client would use.
        if on == "test":
            beside = measured(tuned[client], *parts(federation, "validation", client))
            np.testing.assert_allclose(table[client, 3], [1, *beside], rtol=1e-5)
    assert table.shape[1] == (4 if on == "test" else 3)
    # Right after local training the model is the same one.
    assert not table[:, 1].any()
    assert not np.allclose(table[:, 0], table[:, 2])


@pytest.mark.parametrize("on", ["test", "validation"])
@pytest.mark.parametrize("after", ["participants", "all", "off"])
def test_who_is_evaluated_right_after_training(on, after, lab, federation):
    run = lab("fedavg", on, after)
    who = run.train(0, evaluates=True)
    everybody = run.apply(run.method.client, run.group.clients, 0)
    table = run.evaluate(1)
    expected = {"participants": who.ids.tolist(), "all": run.group.clients, "off": []}[after]
    assert np.flatnonzero(table[:, 1, 0]).tolist() == expected and 0 < len(who.ids) < 8
    for client in expected:
        np.testing.assert_allclose(
            table[client, 1, 1:], measured(everybody[client][1].w, *parts(federation, on, client)), rtol=1e-5)
    # Nobody else sends an update.
    assert list(run.group.ups) == who.ids.tolist()
    run.train(1, evaluates=False)
    # Nor are the participants of the round before.
    assert not run.evaluate(2)[:, 1].any()


@pytest.mark.parametrize("name", ["fedah", "fedper"])
def test_whoever_only_is_evaluated_keeps_nothing(name, lab):
    """This holds also if other clients act too (fedah's `idle`)."""
    runs = [lab(name, after=after) for after in ("off", "all")]
    for run in runs:
        run.go(2, evaluates=True)
    assert runs[0].digest() == runs[1].digest()
    off, everybody = (run.group.find_touched().tolist() for run in runs)
    assert off == everybody and (not all(off) or name == "fedah")
    assert len(runs[0].group.evaluator.after_training) == 0 and len(runs[1].group.evaluator.after_training) == 8


@pytest.mark.parametrize("sections", [{"attack": Attack("sign_flip", share=.4, scale=5.)},
                                      {"attack": Attack("noise", share=.4, scale=5.)},
                                      {"server": Server(clip_norm=1e-3)}], ids=["sign", "noise", "clip"])
def test_what_the_server_takes_is_not_what_is_evaluated(sections, lab):
    """After local training a client's own model is measured, whatever happens to its update."""
    honest, changed = lab(after="all"), lab(after="all", **sections)
    tables = []
    for run in (honest, changed):
        run.train(0, evaluates=True)
        tables.append(run.evaluate(1)[:, 1])
    np.testing.assert_array_equal(*tables)
    sent = [torch.stack([up.w for up in run.group.ups.values()]) for run in (honest, changed)]
    assert not torch.allclose(*sent, atol=1e-4)


def test_a_client_whose_update_is_left_out_is_not_evaluated_after_it(lab):
    from fedmpi.faults import Faults
    run = lab(faults=Faults(bad_update="skip"))
    ids = run.who(0).ids

    class Spoils(type(run.method)):
        def client(self, shared, mine, data):
            mine, up = super().client(shared, mine, data)
            return mine, up._replace(w=up.w / 0) if data.client == ids[1] else up
    run.group.method = run.group.checked.method = Spoils().with_model(run.method.model)
    left = run.train(0, evaluates=True)
    assert left.ids.tolist() == np.delete(ids, 1).tolist() == list(run.group.ups)
    assert list(run.group.evaluator.after_training) == left.ids.tolist()
    assert run.group.find_bad_updates(ids).tolist() == [0, 1, 0, 0, 0]
    assert run.group.find_bad_updates([ids[1], 99]).tolist() == [1, 0]


def test_samples_are_evaluated_in_chunks_and_none_at_all(lab, monkeypatch):
    run = lab().go(1)
    whole = run.evaluate(1)
    monkeypatch.setattr(evaluation, "SAMPLES_PER_PASS", 5)
    np.testing.assert_allclose(run.evaluate(1), whole, rtol=1e-6)
    x = run.group.samples[3]
    x["x_test"], x["y_test"] = x["x_test"][:0], x["y_test"][:0]
    found = run.evaluate(1)[3, 0]
    assert found[:4].tolist() == [1, 0, 0, 0] and np.isnan(found[4])


class Clock:
    """A clock on which each reading is a second after the one before."""

    def __init__(self):
        self.now = 0.

    def perf_counter(self):
        self.now += 1
        return self.now


def test_seconds_are_those_since_they_were_asked_for(lab, monkeypatch):
    """The seconds of each phase add up until they are read, and begin anew then."""
    run = lab()
    monkeypatch.setattr(module, "time", Clock())
    run.train(0)
    assert run.group.take_seconds() == (1, 0)
    assert run.group.take_seconds() == (0, 0)
    run.train(1), run.train(2), run.group.evaluator.measure_clients(3, 8)
    assert run.group.take_seconds() == (2, 1)
    for t in (4, 5, 6):
        run.group.evaluator.measure_clients(t, 8)
    assert run.group.take_seconds() == (0, 3) and not run.group.trains_on_gpu
    run.group.device = SimpleNamespace(type="cuda")
    assert run.group.take_seconds() == (0, 0) and run.group.trains_on_gpu
    run.group.clients = []
    # A rank without clients does not train.
    assert not run.group.trains_on_gpu


def test_a_rank_fills_its_own_rows_alone(federation):
    homes = np.array([1, 0, 0, 1, 0, 1, 1, 0])
    run = Lab(method("fedavg", mlp()), federation, homes=homes, share=1., data=THREE)
    run.group.receive_shared(np.ones(1, bool), [run.shared.w.numpy()])
    run.group.train(0, np.arange(8), np.array([1, 2, 4]), True)
    table = run.group.evaluator.measure_clients(1, 8)
    assert table.shape == (8, 4, 5)
    for part in (0, 3):
        assert np.flatnonzero(table[:, part].any(1)).tolist() == [1, 2, 4, 7]
    assert np.flatnonzero(table[:, 1].any(1)).tolist() == [1, 2, 4] and not table[:, 2].any()


def test_who_is_chosen_by_loss_is_chosen_by_its_training_samples(lab, federation):
    run = lab().go(1)
    found = run.group.evaluator.measure_training_losses(1, [0, 3])
    for i, loss in zip([0, 3], found, strict=True):
        s = federation.client(i)
        _, n, total, _ = measured(run.group.shared.w, s.x_train, s.y_train)
        assert loss == pytest.approx(total / n, rel=1e-5)


@pytest.mark.parametrize("name", ["fedah", "fedbabu"])
def test_losses_to_choose_by_are_measured_with_few_weights_in_memory(lab, name, monkeypatch):
    """Weights of all candidates, each a model of its own, would fill the memory."""
    run, seen, alive = lab(name).go(2), [], []
    expected = run.group.evaluator.measure_training_losses(2, [*range(8)])

    def watch(made):
        def watched(*args):
            weights = made(*args)
            seen.extend([] if weights is None else [weakref.ref(weights)])
            return weights
        return watched

    def count_alive(weights, x, measured=run.group.evaluator.compute_logits):
        alive.append(sum(ref() is not None for ref in seen))
        return measured(weights, x)
    for function in ("personal", "unadapted"):
        monkeypatch.setattr(run.group.checked, function, watch(getattr(run.group.checked, function)))
    monkeypatch.setattr(run.group.evaluator, "compute_logits", count_alive)
    order = [5, 2, 7, 0, 1, 6, 4, 3]
    assert np.array_equal(run.group.evaluator.measure_training_losses(2, order), expected[order])
    assert len(alive) == len(seen) == 8 and max(alive) <= 2


@dataclass(frozen=True)
class AdaptsOnceTrained(Local):
    """Local whose clients are evaluated by what `unadapted` returns, too, once they have trained."""

    def unadapted(self, shared, mine):
        return None if torch.equal(mine.w, self.model.start) else mine.w


def test_losses_to_choose_by_are_in_the_order_of_the_clients(lab, federation):
    """Though those of weights that `unadapted` returns are measured before those of all others."""
    plain = lab("local").go(1)
    mixed = Lab(AdaptsOnceTrained().with_model(mlp()), federation, share=SHARE, data=THREE).go(1)
    order = sorted(range(8), key=lambda c: mixed.checked.unadapted(mixed.shared, mixed.mine(c)) is not None)
    losses = (one.group.evaluator.measure_training_losses(1, order) for one in (plain, mixed))
    assert order != [*range(8)] and np.array_equal(*losses)
