"""Every verb of `data` as the client function of a small method, for comparing engines."""
from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import torch

from fedmpi.clients.state_store import StateStore
from fedmpi.context import RankContext
from fedmpi.engines.batch_plan import LocalTraining
from fedmpi.engines.pass_memory import PassMemory
from fedmpi.engines.result_memory import ResultMemory
from fedmpi.engines.step_counter import StepCounter
from tests.federations import Digits, cnn, mlp

# The number of the round.
NUMBER = 7


class Mine(NamedTuple):
    # (d,)
    w: torch.Tensor
    # () a strength of the client's own
    s: torch.Tensor


class Bench:
    """What an engine needs of hosted clients: training samples and states."""

    def __init__(self, sizes=(57, 1, 11, 3, 10), image=False, device="cpu", net=None):
        net = net or (cnn if image else mlp)()
        self.model, self.federation = net.to(device), Digits(sizes, image=image)
        self.context, self.device = RankContext(), torch.device(device)
        self.method, self.clients, self.messages = SimpleNamespace(model=self.model), list(range(len(sizes))), {}
        self.portions = {}
        self.passes, self.results = PassMemory(), ResultMemory()
        start, generator = self.model.start, torch.Generator().manual_seed(1)
        self.counter = StepCounter()
        self.store = StateStore(Mine(start, torch.tensor(.5, device=device)))
        for c in self.clients:
            noise = torch.randn(len(start), generator=generator).to(device)
            self.store.write(c, Mine(start + .02 * noise, torch.tensor(.2 * c, device=device)))
        self.shared = start + .02 * torch.randn(len(start), generator=generator).to(device)

    def check_grace(self):
        """Let training go on."""

    def get_training_samples(self, client):
        s = self.federation.client(client)
        return tuple(torch.from_numpy(v).to(self.shared.device) for v in (s.x_train, s.y_train))

    def run(self, engine, verb, clients=None, **local) -> dict[int, torch.Tensor]:
        """Apply a verb with an engine; return each client's result."""
        local = LocalTraining(**{"seed": 3, "round": NUMBER, "batch": 10, "epochs": 2, "steps": None, "lr": .05,
                         "momentum": 0.} | local)
        def client(shared, mine, data):
            return verb(self.model, shared, mine, data)
        clients = self.clients if clients is None else clients
        return {c: w.clone() for c, w in engine.apply(client, clients, self.shared, self, local)}


def middle(model):
    """Return a block inside the feature extractor: the first parameter tensor."""
    return model.block(model.names[0])


def plain(model, shared, mine, data):
    return data.descend(model, mine.w)


def own_lr(model, shared, mine, data):
    return data.descend(model, mine.w, lr=data.lr / 3)


def momentum(model, shared, mine, data):
    return data.descend(model, mine.w, momentum=.9)


def only_head(model, shared, mine, data):
    return data.descend(model, mine.w, only=model.h)


def only_phi(model, shared, mine, data):
    return data.descend(model, mine.w, only=model.phi)


def clip(model, shared, mine, data):
    return data.descend(model, mine.w, clip=(-.05, .06))


def pull(model, shared, mine, data):
    return data.descend(model, mine.w, pull=[(shared, .7, None)])


def pulls(model, shared, mine, data):
    """Train with two pulls, one on a block, one with the client's own strength."""
    return data.descend(model, mine.w, pull=[(shared[model.h], mine.s, model.h), (shared, .3, None)])


def pull_momentum(model, shared, mine, data):
    part = middle(model)
    return data.descend(model, mine.w, pull=[(shared, .7, None), (shared[part], mine.s, part)], momentum=.8)


def pull_only(model, shared, mine, data):
    """Train with a pull on the block that moves, with the rest frozen."""
    return data.descend(model, mine.w, only=model.h, pull=[(shared[model.h], .7, model.h)])


def pull_clip(model, shared, mine, data):
    return data.descend(model, mine.w, pull=[(shared, .7, None)], clip=(-.05, .06))


def with_features(model, shared, mine, data):
    features = data.with_features(model.base, shared[model.phi])
    return features.descend(model.head, mine.w[model.h])


def mean_loss(model, shared, mine, data):
    return torch.stack([data.mean_loss(model, mine.w), data.mean_loss(model, shared)])


def mean_loss_through(model, shared, mine, data):
    return data.with_features(model.base, mine.w[model.phi]).mean_loss(model.head, shared[model.h])


def best_of_two(model, shared, mine, data):
    """Choose by training loss, as clustered methods do."""
    both = torch.stack([mine.w, shared])
    losses = torch.stack([data.mean_loss(model, w) for w in both])
    return data.descend(model, both[losses.argmin()])


def own_loss(model, shared, mine, data):
    """Train by the method's own loss with arguments, on part of the vector, as FedAH's mix does."""
    features = data.with_features(model.base, shared[model.phi])

    def loss(W, z, y, own, h):
        return model.head.loss(own + (h - own) * W, z, y)
    W = torch.ones_like(shared[model.h])
    return features.descend(loss, W, lr=1., args=(mine.w[model.h], shared[model.h]), clip=(0., 1.))


def own_loss_block(model, shared, mine, data):
    """Train by the method's own loss on a block, with momentum and a pull."""
    def loss(w, x, y, other):
        return model.loss(w, x, y) + .5 * model.loss(other, x, y) + .1 * (w * other).sum()
    return data.descend(loss, mine.w, only=model.h, args=(shared,), momentum=.5,
                        pull=[(shared[model.h], .3, model.h)])


def noise(model, shared, mine, data):
    """Train by a loss that takes noise and a further argument."""
    def loss(w, x, y, e, centre):
        return model.loss(w, x, y) * (1 + .1 * e[:, 0, 1]) + e[:, 1].sum(1) * (w * centre).sum()
    return data.with_batches(2, 4).descend(loss, mine.w, args=(shared,), noise=(2, 3))


def class_sums(model, shared, mine, data):
    return data.class_sums(model.base, mine.w[model.phi], 10) * torch.arange(1, 11)[:, None]


def with_batches(model, shared, mine, data):
    return data.with_batches(3, 5).descend(model, data.descend(model, mine.w))


def spread(model, shared, mine, data):
    """Return the variance of gradients, of all parameters and of a block."""
    w, all_of_it = data.descend(model, mine.w, pull=[(shared, .5, None)], spread=True)
    part, of_block = data.descend(model, mine.w, only=model.h, momentum=.5, spread=True)
    return torch.cat([w, part, torch.stack([all_of_it, of_block])])


def with_added_logits(model, shared, mine, data):
    """Train and measure beside a model that stays, also on a part of the samples."""
    residual = data.with_added_logits(model, shared)
    w = residual.descend(model, mine.w, pull=[(shared, .3, None)])
    part = residual.with_added_logits(model, mine.w).subset(.6, 2)
    return part.descend(model, w) + part.mean_loss(model, w)


def plus_scan(model, shared, mine, data):
    """Train beside a model in the method's own loop, with its own loss, and on features."""
    residual = data.with_added_logits(model, shared)
    w, = residual.scan(lambda state, grad: (state[0] - data.lr * grad(model, state[0]),), (mine.w,))
    features = data.with_features(model.base, shared[model.phi]).with_added_logits(model.head, mine.w[model.h])
    h = features.descend(lambda h, z, y: 2 * model.head.loss(h, z, y), shared[model.h])
    return torch.cat([w, h])


def other_batches(model, shared, mine, data):
    """Train as many passes as the run's, with other batches."""
    return data.with_batches(None, 4).descend(model, mine.w)


def no_passes(model, shared, mine, data):
    return data.with_batches(0, 4).descend(model, 2 * mine.w)


def subset(model, shared, mine, data):
    """Train on a part of the samples, and choose by the rest."""
    w = data.subset(.8, 3, fixed=True).descend(model, mine.w)
    rest = data.subset(.8, 3, fixed=True, rest=True)
    return torch.where(rest.mean_loss(model, w) < rest.mean_loss(model, shared), w, shared) + data.subset(.5, 1).n


def until(model, shared, mine, data):
    """Repeat until the client's own condition holds; clients that are done wait for the others."""
    w, going = mine.w, mine.s >= 0
    for k in range(4):
        w = data.with_batches(1, k).descend(model, w, where=going)
        going = going & (k < 5 * mine.s)
        if not data.any_client(going):
            break
    return w if k < 4 else shared


def numbered(model, shared, mine, data):
    """Return an entry of a table of the server, by the client's number."""
    return mine.w * torch.arange(20.)[data.id]


def one_by_one(model, shared, mine, data):
    """Return inner products of a client's own vector with the server's."""
    return data.one_by_one(torch.stack([shared, shared ** 2]).mv, mine.w)


def number(model, shared, mine, data):
    return mine.w * data.n + data.lr + data.epochs


def scan(model, shared, mine, data):
    """Train two coupled models side by side; the state carries what is the client's own."""
    def step(state, grad):
        w, theta, s = state
        w = w - data.lr * grad(model, .5 * (w + theta))
        return w, theta - data.lr * (grad(model, theta) + s * (theta - w)), s
    return torch.cat(data.scan(step, (mine.w, shared, mine.s))[:2])


def scan_streams(model, shared, mine, data):
    """Take the second gradient at the point to which the first one leads, on other batches."""
    def step(state, grad, other):
        w, = state
        return (w - data.lr * other(model, w - data.lr * grad(model, w)),)
    return data.scan(step, (mine.w,), streams=(6,))[0]


def scan_former(model, shared, mine, data):
    """Keep the model before each step (the heavy ball)."""
    def step(state, grad):
        w, former = state
        return w - data.lr * grad(model, w) + .5 * (w - former), w
    return torch.cat(data.scan(step, (mine.w, mine.w)))


def scan_moved(model, shared, mine, data):
    """Let the optimizer take steps whose gradient is another tensor of the state, which changes, too."""
    def step(state, grad):
        w, former, last = state
        return last, w, grad(model, w) - .5 * (w - former)
    return torch.cat(data.scan(step, (mine.w, mine.w, .1 * shared), optimize=True))


def passes_steps(model, shared, mine, data):
    return data.with_batches(3, 5, steps=2).descend(model, mine.w)


VERBS = {f.__name__: f for f in (
    plain, own_lr, momentum, only_head, only_phi, clip, pull, pulls, pull_momentum, pull_only, pull_clip, with_features,
    mean_loss, mean_loss_through, best_of_two, own_loss, own_loss_block, noise, class_sums, with_batches,
    with_added_logits, plus_scan, other_batches, no_passes, spread, subset, until, numbered, one_by_one, number,
    scan, scan_streams, scan_former, scan_moved, passes_steps)}
