"""What methods should compute, written a second time in plain PyTorch, one client after another in one process.

Parameters are flat vectors of an ordinary nn.Module whose last layer is `fc2`; training is torch.optim.SGD and
backward(). Nothing of the engines is used: only the draw of the batches is common to both."""
from __future__ import annotations

import copy
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedmpi.engines.batch_plan import LocalTraining, draw_batches
from fedmpi.server.sampling import draw_participants
from tests.methods.lloyd import lloyd

HEADS = ("fc2.weight", "fc2.bias")


class Reference:
    """The participants, batches and training of a run, in plain PyTorch."""

    def __init__(self, model, federation, config):
        self.module, self.start, self.cut = copy.deepcopy(model.module), model.start.clone(), model.h.start
        self.federation, self.config, self.train = federation, config, config.train
        parts = [federation.client(i) for i in range(len(federation.sizes))]
        self.data = [(torch.from_numpy(s.x_train), torch.from_numpy(s.y_train)) for s in parts]

    def who(self, t):
        return draw_participants(self.config, t, self.federation.sizes)

    def batches(self, client, t, stream=0, epochs=None):
        x, y = self.data[client]
        drawn = draw_batches(self.settings(t, epochs), client, stream, len(y))
        for index, count in zip(drawn.index, drawn.count, strict=True):
            yield x[index[:count]], y[index[:count]]

    def settings(self, t, epochs=None):
        """Return the settings of training for so many epochs; if the run counts steps, these are scaled."""
        steps = self.train.steps and math.ceil(self.train.steps / self.train.epochs * (epochs or self.train.epochs))
        epochs = epochs or self.train.epochs
        return LocalTraining(self.config.seed, t, self.train.batch, epochs, steps, self.lr(t), 0.)

    def lr(self, t):
        return self.train.lr * self.train.lr_decay ** t

    def network(self, w, moving=lambda name: True):
        """Return a module with the parameters w; those for which `moving(name)` is true are trained."""
        module = copy_module(self.module)
        vector_to_parameters(w.clone(), module.parameters())
        for name, p in module.named_parameters():
            p.requires_grad_(moving(name))
        return module

    def sgd(self, w, batches, t, moving=lambda name: True, penalty=None):
        """Train w on batches with the run's momentum; returns the new vector."""
        descent = Descent(self, w, t, moving)
        for batch in batches:
            descent.step(batch, penalty)
        return descent.w

    @torch.no_grad()
    def loss(self, w, client):
        x, y = self.data[client]
        return float(F.cross_entropy(self.network(w)(x), y))


def copy_module(module):
    """Return a copy of a module with its own parameters. It shares the rest; copy.deepcopy takes ten times as long."""
    copied = copy.copy(module)
    copied._parameters = {name: nn.Parameter(p.detach()) for name, p in module._parameters.items() if p is not None}
    copied._modules = {name: copy_module(layer) for name, layer in module._modules.items()}
    return copied


class Descent:
    """Trains one vector batch by batch with PyTorch's SGD and the run's momentum."""

    def __init__(self, ref, w, t, moving=lambda name: True):
        self.module = ref.network(w, moving)
        self.optimiser = torch.optim.SGD([p for p in self.module.parameters() if p.requires_grad], ref.lr(t),
                                         momentum=ref.train.momentum)

    def step(self, batch, penalty=None):
        x, y = batch
        loss = F.cross_entropy(self.module(x), y)
        if penalty:
            loss = loss + penalty(parameters_to_vector(self.module.parameters()))
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return self.w

    @property
    def w(self):
        return parameters_to_vector(self.module.parameters()).detach().clone()


def fedavg(ref, rounds, weighted=True):
    w = ref.start
    for t in range(rounds):
        ids = ref.who(t).ids
        trained = torch.stack([ref.sgd(w, ref.batches(i, t), t) for i in ids])
        n = ref.federation.sizes[ids] if weighted else np.ones(len(ids))
        w = torch.from_numpy(np.average(trained.double().numpy(), 0, n)).float()
    return w


def local(ref, rounds):
    w = dict.fromkeys(range(len(ref.data)), ref.start)
    for t in range(rounds):
        for i in ref.who(t).ids:
            w[i] = ref.sgd(w[i], ref.batches(i, t), t)
    return w


def fedmhc(ref, rounds, M, lam, anchor="global"):
    """Return phi, heads and every client's theta (algorithm 1)."""
    cut, phi = ref.cut, ref.start[:ref.cut]
    heads = [ref.start[cut:]] * M
    theta = dict.fromkeys(range(len(ref.data)), ref.start)
    for t in range(rounds):
        ids, sent = ref.who(t).ids, []
        for i in ids:
            m = int(np.argmin([ref.loss(torch.cat([phi, h]), i) for h in heads]))
            down = torch.cat([phi, heads[m]])
            w, theta[i] = fedmhc_client(ref, i, t, down, theta[i], lam, anchor)
            sent.append(w)
        h = np.array([w[cut:].numpy() for w in sent], np.float64)
        labels = lloyd(torch.from_numpy(h), torch.stack(heads), (ref.config.seed, t), ref.who(t).some_are_absent)
        heads = [torch.from_numpy(h[labels == m].mean(0)).float() if (labels == m).any() else heads[m]
                 for m in range(M)]
        phi = torch.stack([w[:cut].double() for w in sent]).mean(0).float()
    return phi, torch.stack(heads), theta


def fedmhc_client(ref, i, t, w, theta, lam, anchor):
    down, local, personal = w, Descent(ref, w, t), Descent(ref, theta, t)
    for batch in ref.batches(i, t):
        w = local.step(batch)
        centre = down if anchor == "global" else w
        theta = personal.step(batch, lambda v, c=centre: lam / 2 * ((v - c) ** 2).sum())
    return w, theta


def fedah(ref, rounds, mix_everyone=False, mix_lr=1.):
    """Return w and every client's (head, W) (algorithm 1)."""
    cut, w = ref.cut, ref.start
    own = dict.fromkeys(range(len(ref.data)), ref.start[cut:])
    W = {i: torch.ones(len(w) - cut) for i in range(len(ref.data))}
    for t in range(rounds):
        who, sent = ref.who(t), []
        for i in who.ids:
            hhat, W[i] = fedah_mix(ref, i, t, w, own[i], W[i], mix_lr)
            down = torch.cat([w[:cut], hhat])
            sent.append(head_then_body(ref, i, t, down))
            own[i] = sent[-1][cut:]
        if mix_everyone:
            for i in sorted(set(own) - set(who.ids)):
                own[i], W[i] = fedah_mix(ref, i, t, w, own[i], W[i], mix_lr)
        w = torch.from_numpy(np.average(torch.stack(sent).double().numpy(), 0, who.sizes)).float()
    return w, own, W


def fedah_mix(ref, i, t, w, own, W, mix_lr):
    """Return hhat and W after one epoch of W <- clip(W - mix_lr * grad_hhat f * (h - h_i), 0, 1)."""
    h = w[ref.cut:]
    for x, y in ref.batches(i, t, stream=1, epochs=1):
        hhat = own + (h - own) * W
        module = ref.network(torch.cat([w[:ref.cut], hhat]))
        F.cross_entropy(module(x), y).backward()
        grad = torch.cat([module.fc2.weight.grad.flatten(), module.fc2.bias.grad])
        W = (W - mix_lr * grad * (h - own)).clamp(0, 1)
    return own + (h - own) * W, W


def head_then_body(ref, i, t, w):
    """Train the head for an epoch with the body frozen, then the body with the head frozen (FedRep)."""
    w = ref.sgd(w, ref.batches(i, t, stream=2, epochs=1), t, moving=lambda name: name in HEADS)
    return ref.sgd(w, ref.batches(i, t), t, moving=lambda name: name not in HEADS)


def fedrep_with_head_upload(ref, rounds):
    """FedRep, with heads averaged too. Nobody uses the average; it is only reported."""
    cut, w = ref.cut, ref.start
    own = dict.fromkeys(range(len(ref.data)), ref.start[cut:])
    for t in range(rounds):
        who, sent = ref.who(t), []
        for i in who.ids:
            sent.append(head_then_body(ref, i, t, torch.cat([w[:cut], own[i]])))
            own[i] = sent[-1][cut:]
        w = torch.from_numpy(np.average(torch.stack(sent).double().numpy(), 0, who.sizes)).float()
    return w, own
