"""The work that everybody does in the benchmark `cohort`: pfl-research's CIFAR10 benchmark (Granqvist et al., 2024).

A peer's Python imports this file too: it needs torch and numpy alone. Pixels are random, for only time counts."""
from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

PIXELS, CLASSES = (32, 32, 3), 10
MARK = "fedmpi-bench-mark"
CHUNK = 500      # images per forward pass of an evaluation


@dataclass(frozen=True)
class Shape:
    """`rounds` are measured, after one that warms up; a peer may use `cores` processes of one thread each."""
    clients: int
    samples: int
    tests: int           # test images per client
    participants: int    # clients per round
    batch: int
    rounds: int
    cores: int
    device: str
    lr: float

    @classmethod
    def told(cls) -> Shape:
        """Return the shape of a peer's command line."""
        return cls(**json.loads(sys.argv[1]))

    def training(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's images (samples, 3, 32, 32), channels-last, scaled, on the device, and labels."""
        return made(client, self.samples, self.device)

    def testing(self) -> tuple[Tensor, Tensor]:
        """Return the test images of all clients, as `training` does."""
        return made(self.clients, self.clients * self.tests, self.device)


class CNN(nn.Sequential):
    """The benchmark's network without its two dropout layers, which no engine but `loop` trains: 1,626,442 parameters.

    Two 3 x 3 convolutions of 32 and 64 channels, one 2 x 2 max-pooling, Linear layers of 128 and 10."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def made(seed: int, n: int, device: str) -> tuple[Tensor, Tensor]:
    generator = np.random.default_rng(seed)
    x = generator.random((n, *PIXELS), np.float32) * 2 - 1
    return torch.from_numpy(x).to(device).movedim(-1, 1), torch.from_numpy(generator.integers(0, CLASSES, n)).to(device)


def batches(x: Tensor, y: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(x.split(size), y.split(size), strict=True)


@torch.no_grad()
def correct(network: nn.Module, x: Tensor, y: Tensor) -> int:
    """Return how many images a network classifies right."""
    return sum(int((network(a).argmax(1) == b).sum()) for a, b in batches(x, y, CHUNK))


def mark(what: str) -> None:
    """Tell the harness, which holds the clock, that a round's training or its evaluation is over."""
    print(MARK, what, flush=True)
