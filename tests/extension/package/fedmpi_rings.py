"""A third party's method, networks, data set and partition, in a package of its own."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from torch import Tensor, nn

from fedmpi.data.samples import Dataset
from fedmpi.method import WHOLE, ClientData, Method, Nothing, Participants, RowsByField
from fedmpi.settings import Ge


class Shared(NamedTuple):
    # (d,) the global model
    w: Annotated[Tensor, WHOLE]


class Up(NamedTuple):
    # (d,) the model after local training
    w: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class Damped(Method):
    """FedAvg whose server goes only a part of the way: w <- w + eta (mean_i w_i - w)."""
    eta: Annotated[float, Ge(0), "share of the way that the server moves to the mean"] = .5

    title = "Damped FedAvg"
    paper = "a test, 2026"
    judged_by = "w, the global model"

    def init(self, n: int) -> tuple[Shared, Nothing]:
        return Shared(self.model.start), Nothing()

    def client(self, shared: Shared, mine: Nothing, data: ClientData) -> tuple[Nothing, Up]:
        return mine, Up(data.descend(self.model, shared.w))

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        return Shared(shared.w + self.eta * (up.w.mean(who.sizes) - shared.w))

    def personal(self, shared: Shared, mine: Nothing, data: ClientData) -> Tensor:
        return shared.w


@dataclass(frozen=True)
class Polar:
    """One hidden layer with tanh; a network with settings of its own."""
    hidden: Annotated[int, Ge(1), "width of the hidden layer"] = 8

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(*shape, self.hidden), nn.Tanh(), nn.Linear(self.hidden, classes))


class PlainNet(nn.Module):
    """An ordinary module that knows nothing of fedmpi."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


class Rings:
    """Three noisy rings in the plane."""
    title = "rings"

    def load(self, root: Path) -> Dataset:
        rng = np.random.default_rng(0)
        y = rng.integers(3, size=600)
        angle = rng.uniform(0, 2 * np.pi, 600)
        x = (y + 1 + rng.normal(0, .1, 600))[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
        return Dataset(x.astype(np.float32), y.astype(np.int64), x[:0].astype(np.float32), y[:0].astype(np.int64))


@dataclass(frozen=True)
class ByTurns:
    """Every client takes a sample in turn."""
    title = "by turns"

    def assign(self, labels: np.ndarray, clients: int,
               rng: np.random.Generator) -> tuple[list[np.ndarray], None]:
        return [np.arange(i, len(labels), clients) for i in range(clients)], None
