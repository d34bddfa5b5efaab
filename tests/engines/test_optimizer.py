"""The optimizers of local training against torch.optim, on real batches: both engines, large and tiny clients."""
from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch.nn import CrossEntropyLoss
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from fedmpi.engines import batch_plan
from fedmpi.engines.loop import Loop
from fedmpi.engines.optimizer import PLAIN_SGD, Optimizer
from fedmpi.engines.step import PullTerm, Step, StepOptions
from fedmpi.engines.vmap import Vmap
from tests.clients.verbs import NUMBER, Bench, mean_loss, momentum, only_head, own_loss, plain, pull

# Settings of a run: name -> (momentum, optimizer).
ASKED = {
    "decay": (0., Optimizer(weight_decay=.1)), "decay, momentum": (.9, Optimizer(weight_decay=.1)),
    "nesterov": (.9, Optimizer(nesterov=True)), "nesterov, decay": (.9, Optimizer(nesterov=True, weight_decay=.1)),
    "clip": (0., Optimizer(clip_norm=.5)), "clip, decay, momentum": (.9, Optimizer(clip_norm=.5, weight_decay=.1)),
    "adam": (0., Optimizer("adam")), "adam, decay, clip": (0., Optimizer("adam", .1, clip_norm=.5)),
    "adamw": (0., Optimizer("adamw")), "adamw, decay, clip": (0., Optimizer("adamw", .3, clip_norm=.5))}
ENGINES = {"loop": Loop, "vmap": Vmap}
each = pytest.mark.parametrize("name", ASKED)
both = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())


@pytest.fixture(scope="module")
def bench():
    """Clients of 57, 1, 11, 3 and 10 samples in batches of 10."""
    return Bench()


def rate(optimizer) -> float:
    return .05 if optimizer.name == "sgd" else .003


def run(bench, engine, verb, name):
    momentum, optimizer = ASKED[name]
    return bench.run(engine(), verb, momentum=momentum, optimizer=optimizer, lr=rate(optimizer))


@pytest.fixture(scope="module")
def trained(bench):
    """Return a function that gives every client's result of `plain` by engine and name; computed once."""
    return cache(lambda engine, name: run(bench, engine, plain, name))


def by_torch(bench, client, name, moving=lambda name: True, pull=None, smoothing=0.) -> torch.Tensor:
    """Return a client's weights after training by torch.optim on its batches, with ordinary backward passes.

    A pull (centre, strength) is added to the gradients after these are clipped."""
    momentum, optimizer = ASKED[name]
    module = copy.deepcopy(bench.model.module).train()
    vector_to_parameters(bench.store.read(client).w.clone(), module.parameters())
    chosen = [p.requires_grad_(moving(name)) for name, p in module.named_parameters()]
    chosen = [p for p in chosen if p.requires_grad]
    lr, decay = rate(optimizer), optimizer.weight_decay
    taken = {"sgd": lambda: torch.optim.SGD(chosen, lr, momentum, weight_decay=decay, nesterov=optimizer.nesterov),
             "adam": lambda: torch.optim.Adam(chosen, lr, weight_decay=decay),
             "adamw": lambda: torch.optim.AdamW(chosen, lr, weight_decay=decay)}[optimizer.name]()
    x, y = bench.get_training_samples(client)
    drawn = batch_plan.draw_batches(batch_plan.LocalTraining(3, NUMBER, 10, 2, None, .05, 0.), client, 0, len(y))
    for index, count in zip(drawn.index, drawn.count, strict=True):
        index = torch.from_numpy(index[:count])
        taken.zero_grad()
        CrossEntropyLoss(label_smoothing=smoothing)(module(x[index]), y[index]).backward()
        if optimizer.clip_norm is not None:
            clip_grad_norm_(chosen, optimizer.clip_norm)
        if pull:
            (.5 * pull[1] * ((parameters_to_vector(module.parameters()) - pull[0]) ** 2).sum()).backward()
        taken.step()
    return parameters_to_vector(module.parameters()).detach()


def near(found, expected, atol=2e-6):
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@both
@each
def test_steps_are_those_of_torch(bench, trained, engine, name):
    for client, found in trained(engine, name).items():
        near(found, by_torch(bench, client, name))


@both
@pytest.mark.parametrize("name", ["nesterov, decay", "clip, decay, momentum", "adam, decay, clip",
                                  "adamw, decay, clip"])
def test_pulls_are_part_of_the_gradient_but_are_not_shortened(bench, engine, name):
    for client, found in run(bench, engine, pull, name).items():
        near(found, by_torch(bench, client, name, pull=(bench.shared, .7)))


@both
@pytest.mark.parametrize("name", ["nesterov, decay", "adam, decay, clip", "adamw, decay, clip"])
def test_what_is_frozen_neither_moves_nor_decays(bench, engine, name):
    h = bench.model.h.start
    for client, found in run(bench, engine, only_head, name).items():
        near(found, by_torch(bench, client, name, moving=lambda name: name.startswith("fc2")))
        assert torch.equal(found[:h], bench.store.read(client).w[:h])


@pytest.mark.parametrize("name", ["nesterov", "adam"])
def test_a_pull_moves_what_is_frozen_by_its_own_steps(name):
    """A block without gradients has only the pull as its gradient, in each step."""
    momentum, optimizer = ASKED[name]
    start, gradients = torch.linspace(-1, 1, 6), torch.linspace(-2, 3, 12).view(4, 3)
    step = Step(start.clone(), lambda w: [w[:3]], StepOptions(.1, momentum, [PullTerm(torch.ones(6), .5, None)],
                                                              optimizer=optimizer))
    w = start.clone().requires_grad_()
    by_torch = torch.optim.SGD([w], .1, momentum, nesterov=True) if momentum else torch.optim.Adam([w], .1)
    for g in gradients:
        step.take([g])
        w.grad = torch.cat([g, torch.zeros(3)]) + .5 * (w.detach() - 1)
        by_torch.step()
    near(step.result(), w.detach())


@both
@each
def test_each_setting_matters(bench, trained, engine, name):
    """The gradients' norms are above the limit of .5 for some batches and below it for others."""
    momentum, optimizer = ASKED[name]
    without = bench.run(engine(), plain, momentum=momentum, lr=rate(optimizer))
    moved = [float((found - without[client]).abs().max()) for client, found in trained(engine, name).items()]
    assert max(moved) > 1e-3


@both
def test_a_momentum_of_the_methods_own_asks_for_its_own_steps(bench, engine):
    """The run's optimizer does not apply to these steps, so a learned mix is not decayed."""
    for verb in (momentum, lambda model, shared, mine, data: data.descend(model, mine.w, momentum=0.)):
        found = bench.run(engine(), verb, optimizer=Optimizer("adamw", .3, clip_norm=.5))
        expected = bench.run(engine(), verb)
        assert all(torch.equal(found[c], expected[c]) for c in bench.clients)


@both
def test_a_loss_of_the_methods_own_takes_the_runs_steps(bench, engine):
    def loss(model, shared, mine, data):
        return data.descend(lambda w, x, y: model.loss(w, x, y), mine.w)
    for client, found in run(bench, engine, loss, "adamw, decay, clip").items():
        near(found, by_torch(bench, client, "adamw, decay, clip"))


@pytest.mark.parametrize("verb", [pull, own_loss])
@pytest.mark.parametrize("name", ["clip, decay, momentum", "nesterov, decay", "adamw, decay, clip"])
def test_chunks_do_not_matter(bench, verb, name):
    """They do not change a single bit."""
    whole, engine = run(bench, Vmap, verb, name), Vmap()
    engine.most = 2
    chunks = run(bench, lambda: engine, verb, name)
    assert all(torch.equal(chunks[c], whole[c]) for c in bench.clients)


@pytest.mark.parametrize("name", ["nesterov, decay", "adam, decay, clip", "adamw, decay, clip"])
def test_convolutions_train_alike_in_both_engines(name):
    images = Bench((23, 1, 3), image=True)
    loop, vmap = (run(images, engine, plain, name) for engine in ENGINES.values())
    assert max(float((loop[c] - vmap[c]).abs().max()) for c in images.clients) < 1e-5


def test_graphs_take_the_same_steps(bench, trained):
    for name in ASKED:
        called, recorded = trained(Vmap, name), run(bench, lambda: Vmap(graphs="on"), plain, name)
        assert all(torch.equal(called[c], recorded[c]) for c in bench.clients)


@both
def test_smoothed_labels_are_those_of_torch(bench, engine):
    asked = {"momentum": .9, "optimizer": ASKED["clip, decay, momentum"][1], "smoothing": .2}
    for client, found in bench.run(engine(), plain, **asked).items():
        near(found, by_torch(bench, client, "clip, decay, momentum", smoothing=.2))


@both
def test_labels_are_smoothed_in_every_gradient_and_in_no_measure(bench, engine):
    def one_step(model, shared, mine, data):
        return data.scan(lambda state, grad: (state[0] - data.lr * grad(model, state[0]),), (mine.w,))[0]

    def without(model, shared, mine, data):
        return data.descend(model, mine.w, momentum=0.)
    for verb in (one_step, without):
        found, hard = bench.run(engine(), verb, smoothing=.2), bench.run(engine(), verb)
        assert all((found[c] - hard[c]).abs().max() > 1e-3 for c in bench.clients)
    steps, descent = bench.run(engine(), one_step, smoothing=.2), bench.run(engine(), without, smoothing=.2)
    for c in bench.clients:
        near(steps[c], descent[c])
    measured, hard = bench.run(engine(), mean_loss, smoothing=.2), bench.run(engine(), mean_loss)
    assert all(torch.equal(measured[c], hard[c]) for c in bench.clients)


def test_only_the_plain_optimizer_changes_nothing():
    plain_of = {asked.adapts_gradients or asked.needs_total for _, asked in ASKED.values()}
    assert plain_of == {True} and not PLAIN_SGD.adapts_gradients and not PLAIN_SGD.needs_total
