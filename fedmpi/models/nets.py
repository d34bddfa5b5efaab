"""The networks that a configuration can name. Each is a frozen dataclass of settings that builds an nn.Module.

`shape` is a sample's shape as networks see it: (channels, height, width) for images, (features,) for vectors."""
from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Annotated

from fedmpi import registry
from fedmpi.errors import BadInput
from fedmpi.settings import Ge


@dataclass(frozen=True)
class MLP:
    """One hidden layer, for small images and vectors."""
    title = "mlp"
    hidden: Annotated[int, Ge(1), "width of the hidden layer"] = 64

    def build(self, shape: tuple[int, ...], classes: int):
        from math import prod

        from torch import nn
        return nn.Sequential(OrderedDict(
            flat=nn.Flatten(), fc1=nn.Linear(prod(shape), self.hidden), relu=nn.ReLU(),
            fc2=nn.Linear(self.hidden, classes)))


@dataclass(frozen=True)
class CNN4:
    """Two 5x5 convolutions and two Linear layers: the 4-layer CNN of McMahan et al. (2017), without padding."""
    title = "cnn4"
    width: Annotated[int, Ge(1), "width of the hidden Linear layer"] = 512

    def build(self, shape: tuple[int, ...], classes: int):
        from torch import nn
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise BadInput(f"model: cnn4 needs images of at least 16 x 16, not samples of shape {shape}; use mlp")
        channels, *pixels = shape
        height, width = (((p - 4) // 2 - 4) // 2 for p in pixels)
        # ReLU after max-pool: the same numbers as before it, on a quarter of the pixels
        return nn.Sequential(OrderedDict(
            conv1=nn.Conv2d(channels, 32, 5), pool1=nn.MaxPool2d(2), relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, 5), pool2=nn.MaxPool2d(2), relu2=nn.ReLU(), flat=nn.Flatten(),
            fc1=nn.Linear(64 * height * width, self.width), relu3=nn.ReLU(), fc2=nn.Linear(self.width, classes)))


@dataclass(frozen=True)
class Custom:
    """Any nn.Module class, named as `module:Class`; its settings are the keyword arguments of the class."""
    title = "a custom model"
    path: str
    settings: dict = field(default_factory=dict)

    def build(self, shape: tuple[int, ...], classes: int):
        try:
            return registry.imported("models", self.path)(**self.settings)
        except TypeError as error:
            raise BadInput(f"model: {self.path} cannot be built from {self.settings}: {error}") from None


BUILT_IN = {"mlp": MLP, "cnn4": CNN4}
