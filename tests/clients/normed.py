"""A small network with BatchNorm, and ordinary PyTorch training for it, for tests of running statistics."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedmpi.engines import batch_plan, batchnorm
from fedmpi.engines.loop_data import LoopData
from fedmpi.models.build import as_input, build_model
from tests.federations import Digits, Lab, method

# One of these gives a last batch of one sample.
SIZES = (20, 11, 57, 30)
IMAGE = (8, 8, 1)


@dataclass(frozen=True)
class Normed:
    """A small network with BatchNorm, also after its Linear layer."""
    policy: str | None = "local"
    head: tuple = ()

    def build(self, shape, classes):
        return normed(classes)


def normed(classes=10):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(),
                         nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))


def model_of(policy="local", head=()):
    return build_model(Normed(policy, head), IMAGE, np.dtype("uint8"), 10, seed=5)


def lab(name, policy="local", head=(), share=1., sizes=SIZES, **settings):
    unbound = type(method(name, model_of("average")))(**settings)
    return Lab(batchnorm.bind_method(unbound, model_of(policy, head)), Digits(sizes, image=True), share=share)


def data_of(sizes=(34,), client=0, **local):
    s = Digits(sizes, image=True).client(client)
    local = batch_plan.LocalTraining(**{"seed": 3, "round": 2, "batch": 10, "epochs": 2, "steps": None, "lr": .05,
                          "momentum": 0.} | local)
    return LoopData(torch.from_numpy(s.x_train), torch.from_numpy(s.y_train), client, local)


def load(module, model, w):
    """Load a flat vector into a plain module."""
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, view in zip(model.names, model.split(w), strict=True):
        held[name].data.copy_(view)
    return module


def flat(module, model):
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    w = torch.empty(model.size)
    for name, view in zip(model.names, model.split(w), strict=True):
        view.copy_(held[name].detach())
    return w


def train(module, data, momentum=0., penalty=None):
    """Train a module with torch.optim.SGD and ordinary backward passes."""
    optimiser = torch.optim.SGD(module.parameters(), data.local.lr, momentum)
    drawn = batch_plan.draw_batches(data.local, data.client, data.stream, data.n)
    for index, count in zip(drawn.index, drawn.count, strict=True):
        index = torch.from_numpy(index[:count])
        module.train(len(index) > 1)
        loss = F.cross_entropy(module(as_input(data.x[index])), data.y[index])
        loss = loss + penalty(module) if penalty else loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return module.eval()


def near(a, b, atol=1e-6):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


policies = pytest.mark.parametrize("policy", ["local", "average"])
