"""The networks that a configuration can name. Each is a frozen dataclass of settings that builds an nn.Module.

`shape` is a sample's shape as networks see it: (channels, height, width) for images, (features,) for vectors,
(positions,) for texts. A settings class of your own has the settings `head` and `start` too if it declares
`head: Head = ()` and `start: Start = None`."""
from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Literal

from fedmpi import registry
from fedmpi.errors import BadInput
from fedmpi.own_code.failures import find_own_line
from fedmpi.settings import Ge

if TYPE_CHECKING:
    from torch import nn

Start = Annotated[str | None, "file with the initial weights: a safetensors file, or a checkpoint of fedmpi; null: "
                  "random ones by the seed"]
Head = Annotated[tuple[str, ...], "the blocks that form the head, the last ones; none: the last Linear layer"]
RunningStats = Annotated[Literal["local", "average"], "BatchNorm's: stay at each client, or averaged with parameters"]


@dataclass(frozen=True)
class MLP:
    """One hidden layer, for small images and vectors."""
    title = "mlp"
    hidden: Annotated[int, Ge(1), "width of the hidden layer"] = 64
    head: Head = ()
    start: Start = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network for samples of any shape, which it flattens."""
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
    head: Head = ()
    start: Start = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network for images (channels, height, width).

        Raises BadInput for other samples, and for images that are smaller than 16 x 16."""
        from torch import nn
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise BadInput(f"model: cnn4 needs images of at least 16 x 16, not samples of shape {shape}; use mlp")
        channels, *pixels = shape
        height, width = (((p - 4) // 2 - 4) // 2 for p in pixels)
        # ReLU behind the max-pooling gives the same numbers as in front of it, from a quarter of the pixels.
        return nn.Sequential(OrderedDict(
            conv1=nn.Conv2d(channels, 32, 5), pool1=nn.MaxPool2d(2), relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, 5), pool2=nn.MaxPool2d(2), relu2=nn.ReLU(), flat=nn.Flatten(),
            fc1=nn.Linear(64 * height * width, self.width), relu3=nn.ReLU(), fc2=nn.Linear(self.width, classes)))


@dataclass(frozen=True)
class LeNet5:
    """LeCun et al. (1998): conv 6@5x5, conv 16@5x5, Linear 120, Linear 84, Linear C, with ReLU and 2x2 max-pooling.

    Layers, in order: conv1 (5x5, c -> 6), ReLU, max-pool 2, conv2 (5x5, 6 -> 16), ReLU, max-pool 2, fc1 (-> 120), ReLU,
    fc2 (120 -> 84), ReLU, fc3 (84 -> C), all with biases. Images smaller than 32 x 32 are padded by 2 pixels on every
    side in conv1, so that MNIST's 28 x 28 become the 32 x 32 of the paper; its fc1 then has 16 x 5 x 5 inputs.
    Departures: ReLU and max-pooling for tanh and trainable average pooling, full connections in conv2, a Linear last
    layer, as is usual today."""
    title = "lenet5"
    head: Head = ()
    start: Start = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network for images (channels, height, width).

        Raises BadInput for other samples, and for images that are smaller than 12 x 12."""
        from torch import nn
        if len(shape) != 3 or min(shape[1:]) < 12:
            raise BadInput(f"model: lenet5 needs images of at least 12 x 12, not samples of shape {shape}; use mlp")
        channels, *pixels = shape
        pad = 2 * (min(pixels) < 32)
        height, width = (((p + 2 * pad - 4) // 2 - 4) // 2 for p in pixels)
        return nn.Sequential(OrderedDict(
            conv1=nn.Conv2d(channels, 6, 5, padding=pad), pool1=nn.MaxPool2d(2), relu1=nn.ReLU(),
            conv2=nn.Conv2d(6, 16, 5), pool2=nn.MaxPool2d(2), relu2=nn.ReLU(), flat=nn.Flatten(),
            fc1=nn.Linear(16 * height * width, 120), relu3=nn.ReLU(), fc2=nn.Linear(120, 84), relu4=nn.ReLU(),
            fc3=nn.Linear(84, classes)))


@dataclass(frozen=True)
class ResNet18:
    """ResNet-18 of He et al. (2016) as torchvision builds it (7x7 stem), from a random start.

    By default GroupNorm (Wu and He, 2018) takes the place of BatchNorm: it keeps no statistics of a client's data. Two
    groups: on images of 32 x 32 the maps of the last stage have a single pixel, so that a group is normalised over its
    channels alone, 256 of them with 2 groups, 16 with Wu and He's 32.
    With `norm: batch` the vector holds 9,600 running statistics beside the parameters. With `local` each client keeps
    its own, which its latest training left: a model that the server averaged is evaluated with them, and a client that
    has not trained yet is evaluated with the statistics of the start. With `average` they are averaged as the
    parameters are. A batch of a single sample has no statistics, so it is normalised by the running ones. Only engine
    `loop` trains it."""
    title = "resnet18"
    renamed = {"statistics": "running_stats"}
    norm: Annotated[Literal["group", "batch"], "normalisation layers"] = "group"
    groups: Annotated[int, Ge(1), "groups of channels of a GroupNorm layer, a divisor of 64"] = 2
    running_stats: RunningStats = "local"
    head: Head = ()
    start: Start = None

    def __post_init__(self) -> None:
        if 64 % self.groups:
            raise ValueError(f"groups = {self.groups}: the layers have 64, 128, 256 and 512 channels; take a divisor "
                             "of 64")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network for images (channels, height, width). Raises BadInput for any other shape."""
        from torch import nn
        from torchvision.models import resnet18
        if len(shape) != 3:
            raise BadInput(f"model: resnet18 needs images, not samples of shape {shape}; use mlp")
        network = resnet18(weights=None, num_classes=classes, norm_layer=self._norm)
        if shape[0] != 3:
            network.conv1 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
            # torchvision begins with the same weights.
            nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        return network

    @property
    def policy(self) -> str | None:
        """Return whose the running statistics are, `local` or `average`; None without BatchNorm."""
        return self.running_stats if self.norm == "batch" else None

    def _norm(self, channels: int) -> nn.Module:
        from torch import nn
        return nn.GroupNorm(self.groups, channels) if self.norm == "group" else nn.BatchNorm2d(channels)


@dataclass(frozen=True)
class FastText:
    """fastText of Joulin et al. (2017) for texts as word numbers: the mean of word vectors, and two Linear layers.

    The mean is taken over all positions, also those of padding (word 0, whose vector stays 0). There is nothing between
    the Linear layers."""
    title = "fasttext"
    vocabulary: Annotated[int, Ge(1), "number of words, padding included: every word number is below it"] = 98_635
    width: Annotated[int, Ge(1), "length of a word's vector, and width of the hidden layer"] = 32
    head: Head = ()
    start: Start = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network for texts (positions,) of word numbers. Raises BadInput for any other shape."""
        from torch import nn

        from fedmpi.models.layers import MeanOverPositions
        if len(shape) != 1:
            raise BadInput(f"model: fasttext needs texts, not samples of shape {shape}; use cnn4 or mlp")
        network = nn.Sequential(OrderedDict(
            table=nn.Embedding(self.vocabulary, self.width, padding_idx=0), mean=MeanOverPositions(),
            fc1=nn.Linear(self.width, self.width), fc2=nn.Linear(self.width, classes)))
        # models.flat.Net looks for this name.
        network.lookup = "table"
        return network


@dataclass(frozen=True)
class Custom:
    """Any nn.Module class, named as `module:Class` or by an entry point; its settings are the keyword arguments of the
    class, but for those of OWN."""
    title = "a custom model"
    path: str
    settings: dict[str, object] = field(default_factory=dict[str, object])
    running_stats: RunningStats = "local"
    head: Head = ()
    start: Start = None

    # settings of every network, not handed to the class
    OWN = ("running_stats", "head", "start")
    renamed = {"statistics": "running_stats"}

    def own(self) -> dict[str, object]:
        """Return those of OWN that differ from their defaults, as plain values."""
        found: dict[str, object] = {"running_stats": self.running_stats} if self.running_stats != "local" else {}
        found |= {"start": self.start} if self.start is not None else {}
        return found | ({"head": list(self.head)} if self.head else {})

    @property
    def policy(self) -> str | None:
        """Return whose the running statistics of its BatchNorm layers, if any, are: `local` or `average`."""
        return self.running_stats

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network, which the class makes of its settings alone: it is not told the shape and the classes.

        Raises BadInput if the class is not an nn.Module or does not take the settings."""
        make = registry.find_class("models", self.path)
        # no configuration calls what it likes
        if not makes_networks(make):
            raise BadInput(f"model: {self.path} is not a class of networks; name a subclass of torch.nn.Module, or a "
                           "function that is annotated to return one: `-> nn.Module`")
        try:
            return make(**self.settings)
        except TypeError as error:
            if find_own_line(error):
                raise
            raise BadInput(f"model: {self.path} cannot be built from {self.settings}: {error}") from None


def makes_networks(make: object) -> bool:
    """Say whether calling something gives a network: a subclass of nn.Module, a function that is annotated to return
    one, or a functools.partial of either. `make` is whatever a configuration names."""
    from torch import nn
    while isinstance(make, partial):
        make = make.func
    if isinstance(make, FunctionType):
        make = make.__annotations__.get("return")
    # A text is an annotation that is not worked out: what it names may be imported for type checkers alone.
    return make in ("nn.Module", "torch.nn.Module", "Module") or isinstance(make, type) and issubclass(make, nn.Module)


BUILT_IN = {"mlp": MLP, "cnn4": CNN4, "lenet5": LeNet5, "resnet18": ResNet18, "fasttext": FastText}
