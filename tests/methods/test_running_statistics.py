"""BatchNorm's running statistics do not count where methods compare models, and no pull moves them."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.models.build import build_model
from fedmpi.models.slices import gather_statistics, remove_slices, zero_statistics
from tests.clients.normed import IMAGE, Normed, data_of, model_of, normed
from tests.federations import Digits, Lab, method
from tests.methods.hand import state, up, who

# No batch has a single sample, for which a network in training would take its running statistics.
EVEN_SIZES = (20, 30, 40, 30, 20, 40)
# what a line of a round says of time
SECONDS = "seconds_similarity"


@dataclass(frozen=True)
class Remembering(Normed):
    """A network that trains alike whatever this momentum of its running statistics is."""
    policy: str = "average"
    momentum: float = .1

    def build(self, shape, classes):
        module = normed(classes)
        for layer in module:
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                layer.momentum = self.momentum
        return module


def go_with(momentum, name, settings):
    """Run three rounds; return what the rounds say, the clients' models, and the server's short vectors."""
    model = build_model(Remembering(momentum=momentum), IMAGE, np.dtype("uint8"), 10, seed=5)
    run = Lab(method(name, model, **settings), Digits(EVEN_SIZES, image=True)).open()
    facts = [{name: np.asarray(value).tolist() for name, value in (who.facts | who.each).items() if name != SECONDS}
             for who in map(run.round, range(3))]
    evaluated = run.apply(run.method.personal, range(len(EVEN_SIZES)), 3)
    short = [value.tolist() for value in run.shared if value.numel() < 50]
    return facts, torch.stack([evaluated[i] for i in range(len(EVEN_SIZES))]), short, model.buffers


@pytest.mark.parametrize("name, settings", [
    ("cfl", {"after": 1, "eps1": 2., "eps2": 0., "M": 3}), ("fedamp", {}), ("fedamp", {"form": "heuristic"}),
    ("fedgroup", {"K": 2, "first": 1}), ("pfedcam", {"K": 2}), ("cgpfl", {"K": 2}), ("lcfed", {"K": 2, "D": 3}),
    # several parts are chosen by their losses, which statistics do change
    ("ifca", {"k": 1}), ("ifca", {"k": 1, "shared_body": True}),
    ("fedcps", {"k": 1, "layers": 1}), ("fesem", {"k": 2}), ("fesem", {"k": 2, "layers": ["base"]})])
def test_statistics_do_not_count_where_models_are_compared(name, settings):
    slow, fast = (go_with(momentum, name, settings) for momentum in (.1, .9))
    assert slow[0] == fast[0] and slow[2] == fast[2]
    assert torch.equal(*(zero_statistics(evaluated, buffers) for _, evaluated, _, buffers in (slow, fast)))
    # the statistics themselves differ
    assert not torch.equal(slow[1], fast[1])


@pytest.mark.parametrize("name, inner", [("pfedme", "K"), ("cgpfl", "inner")])
def test_a_pull_between_two_models_moves_no_statistics(name, inner):
    """After two steps of theta on one batch they follow from the batch and the first weights alone."""
    model, data, found = model_of("average"), data_of((8,), epochs=1), []
    for lam in (0., .7):
        mine = method(name, model, **{"lam": lam, inner: 2, "lr_p": .5})
        kept, sent = mine.client(*mine.init(1), data)
        found.append(torch.stack([kept.theta, sent[0]]))
    none, pulled = (torch.cat([gather_statistics(w, model.buffers)[None] for w in pair]) for pair in found)
    assert torch.equal(none, pulled) and not torch.equal(*found)
    # what the client sends has those of the model that saw the samples
    assert torch.equal(pulled[0], pulled[1])
    assert not torch.equal(pulled[0], gather_statistics(model.start, model.buffers))


def test_pfedmes_server_goes_past_the_mean_with_parameters_alone():
    model = model_of("average")
    rows = torch.stack([model.start, model.start + 2])
    found = method("pfedme", model, beta=2.).server(state("pfedme", w=model.start), up(w=rows), who([0, 1], [5, 5])).w
    expected = model.start + 2
    for part in model.buffers:
        expected[part] = model.start[part] + 1
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name, more", [("fedmhc", {}), ("fedmhc_ah", {})])
def test_heads_are_clustered_by_their_parameters(name, more):
    model = model_of("average", head=("5", "6", "8"))
    rows = model.start.repeat(4, 1)
    rows[2:, model.h] += 1
    for part in model.buffers:
        rows[:, part] = torch.tensor([1., 90., 2., 91.])[:, None]
    heads, there = model.start[model.h].repeat(2, 1), who([0, 1, 2, 3], [5, 5, 5, 5])
    shared = state(name, phi=model.start[model.phi], heads=heads)
    found = method(name, model, M=2, **more).server(shared, up(w=rows), there)
    a, b, c, d = there.facts["clusters"]
    assert a == b != c == d
    # a centre has the mean statistics of its members
    at = model.head.buffers[0].start
    assert sorted(found.heads[:, at].tolist()) == [45.5, 46.5]


def test_slices_without_holes():
    assert remove_slices([slice(0, 9)], []) == [slice(0, 9)]
    assert remove_slices([slice(0, 9)], [slice(7, 9)]) == [slice(0, 7)]
    assert remove_slices([slice(2, 9), slice(11, 12)], [slice(0, 1), slice(2, 3), slice(5, 6), slice(11, 12)]) == [
        slice(3, 5), slice(6, 9)]
    model = model_of("average")
    assert sum(part.stop - part.start for part in model.trainable + model.buffers) == model.size


def test_the_weights_of_a_mix_take_no_statistics():
    """They are as long as the network, if FedALA mixes all of it, and stay between 0 and 1."""
    model = build_model(Remembering(), IMAGE, np.dtype("uint8"), 10, seed=5)
    run = Lab(method("fedala", model, p=10), Digits(EVEN_SIZES, image=True)).go(3)
    W = torch.stack([run.mine(client).W for client in range(len(EVEN_SIZES))])
    assert W.shape[1] == model.size and W.min() >= 0 and W.max() <= 1 and W.min() < .99
