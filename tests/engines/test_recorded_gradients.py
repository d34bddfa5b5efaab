"""Gradients of a method's own steps that are replayed are those that are computed: as CUDA graphs if there is a GPU,
otherwise on a CPU with the same use of memory."""
from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from fedmpi.engines import cuda_graphs, recorded_gradients
from fedmpi.engines.vmap import Vmap
from tests.clients.verbs import Bench

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
SIZES = (57, 1, 11, 3, 10)


def keep_both(model, shared, mine, data):
    """Use a gradient after another one was asked for."""
    def step(state, gradient):
        w, = state
        first = gradient(model, w)
        second = gradient(model, w - .1 * first)
        return (w - data.lr * (first + 2 * second),)
    return data.scan(step, (mine.w,))[0]


def common(model, shared, mine, data):
    """Ask for the gradient at a point that all clients have in common."""
    return data.scan(lambda state, gradient: (state[0] - data.lr * gradient(model, shared),), (mine.w,))[0]


def several_models(model, shared, mine, data):
    """Ask for the gradients of two models at once, in a vmap of the method's own."""
    def step(state, gradient):
        w, = state
        both = vmap(lambda v: gradient(model, v))(torch.stack([w, .5 * w]))
        return (w - data.lr * both.sum(0),)
    return data.scan(step, (mine.w,))[0]


def through_the_gradient(model, shared, mine, data):
    """Differentiate the squared length of the gradient, for which this must be computed anew."""
    def step(state, gradient):
        w, = state
        return (w - data.lr * grad(lambda v: gradient(model, v).square().sum())(w),)
    return data.scan(step, (mine.w,))[0]


def beside_a_loss(model, shared, mine, data):
    """Ask for the gradient of the network and for that of a loss of the method's own."""
    def loss(w, x, y):
        return cross_entropy(model(w, x), y, reduction="none")

    def step(state, gradient):
        w, v = state
        return w - data.lr * gradient(model, w), v - data.lr * gradient(loss, v)
    return torch.cat(data.scan(step, (mine.w, mine.w)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("verb", [keep_both, common, several_models, through_the_gradient, beside_a_loss])
def test_not_a_bit_apart(verb, device):
    """The second run of an engine knows how many gradients a step asks for."""
    bench, engines = Bench(SIZES, device=device), [Vmap(graphs=mode) for mode in ("off", "on", "on")]
    engines[2] = engines[1]
    found = [(bench.run(engine, verb, epochs=4), bench.counter.table.copy()) for engine in engines]
    for results, _ in found[1:]:
        assert all(torch.equal(found[0][0][c], results[c]) for c in bench.clients)
    # each run counts the same steps
    assert (found[1][1] == 2 * found[0][1]).all() and (found[2][1] == 3 * found[0][1]).all()


@pytest.mark.parametrize("verb, recordings", [(keep_both, [0, 1]), (common, [0, 0]), (several_models, [0, 0]),
                                              (through_the_gradient, [0, 0])])
def test_what_is_recorded(verb, recordings, monkeypatch):
    """Clients of equal size make four steps. In its first training an engine expects one gradient a step, which is too
    few to record. Only gradients at points of the clients' own, outside transforms of the method's, are recorded."""
    made = []
    monkeypatch.setattr(cuda_graphs, "record_step", lambda step, stream: made.append(step) or step)
    monkeypatch.setattr(recorded_gradients.StepRecorder, "wanted", lambda self, device: True)
    bench, engine, found = Bench((16,) * 3), Vmap(graphs="auto"), []
    for _ in recordings:
        bench.run(engine, verb, batch=4, epochs=1)
        found.append(len(made))
    assert found == recordings


def test_each_number_of_active_clients_has_a_recording(monkeypatch):
    """In four epochs one client makes 24 steps and the other 8: both together are recorded, and the first one alone."""
    made = []
    monkeypatch.setattr(cuda_graphs, "record_step", lambda step, stream: made.append(step) or step)
    Bench((57, 17)).run(Vmap(graphs="on"), keep_both, epochs=4)
    assert len(made) == 2


def test_what_the_only_step_of_a_training_asked_for_is_remembered(monkeypatch):
    """pFedMe with a single batch asks for all gradients of a round in one step."""
    def many(model, shared, mine, data):
        def step(state, gradient):
            w, = state
            for _ in range(4):
                w = w - data.lr * gradient(model, w)
            return (w,)
        return data.scan(step, (mine.w,))[0]
    made, engine = [], Vmap(graphs="on")
    monkeypatch.setattr(cuda_graphs, "record_step", lambda step, stream: made.append(step) or step)
    for recordings in (0, 1):
        Bench((7, 7)).run(engine, many, steps=1)
        assert len(made) == recordings
