"""Small federations of real digits, and a laboratory that runs a method on them round by round, without files.

Most of it is fedmpi.testing's, by shorter names."""
from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from torch import nn

from fedmpi import registry
from fedmpi.engines.engine_choice import CPU as CPU
from fedmpi.models.build import build_model
from fedmpi.settings import make_settings as settled
from fedmpi.testing.federations import CLIENT_SIZES as SIZES  # noqa: F401
from fedmpi.testing.federations import OddClients as Odd  # noqa: F401
from fedmpi.testing.federations import OtherTests, Renumbered  # noqa: F401
from fedmpi.testing.federations import SmallFederation as Digits  # noqa: F401
from fedmpi.testing.federations import build_small_network as mlp  # noqa: F401
from fedmpi.testing.federations import load_digits as pool  # noqa: F401
from fedmpi.testing.lab import LAB_TRAINING as TRAIN  # noqa: F401
from fedmpi.testing.lab import Lab as Lab
from fedmpi.testing.variants import measure_distance as apart  # noqa: F401


class View:
    """A changed federation: everything that a subclass does not define is that of the original."""

    def __init__(self, federation):
        self.original = federation

    def __getattr__(self, name):
        return getattr(self.original, name)


@dataclass(frozen=True)
class TinyCNN:
    """A convolutional network for 8 x 8 images."""

    def build(self, shape, classes):
        return nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                             nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, classes))


def cnn():
    """Return a small convolutional network for the digits as images."""
    return build_model(TinyCNN(), (8, 8, 1), np.dtype("uint8"), 10, seed=5)


class Standardised(nn.Module):
    """Standardises each sample first, so that it is undefined for a sample without any variance."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        return self.head(self.hidden(x).relu())


def standardised():
    """Return a small network for the digits that is undefined for blank samples."""
    settings = SimpleNamespace(build=lambda shape, classes: Standardised())
    return build_model(settings, (64,), np.dtype("float32"), 10, seed=5)


def method(name: str, model, **settings):
    """Make a method by name; its settings are checked like those of a configuration."""
    return settled(registry.find_class("methods", name), settings, "method").with_model(model)
