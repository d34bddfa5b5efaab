"""Small federations of real digits, and a laboratory that runs a method on them round by round, without files.

Most of it is fedmpi.testing's, by shorter names."""
from __future__ import annotations

from dataclasses import dataclass

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


def method(name: str, model, **settings):
    """Make a method by name; its settings are checked like those of a configuration."""
    return settled(registry.find_class("methods", name), settings, "method").with_model(model)
