"""The work of the benchmark `cohort`, which is pfl-research's CIFAR10 benchmark (Granqvist et al., 2024).

The Pythons of other frameworks import this file too, so it needs only torch and numpy. Pixels are random, because only
time matters."""
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
# Images per forward pass of an evaluation.
CHUNK = 500


@dataclass(frozen=True)
class Shape:
    """The sizes of the work, the same for all.

    Args:
        samples: training images per client
        tests: test images per client
        participants: clients per round
        rounds: measured rounds, after one that warms up
        cores: processes of one thread each that a framework may use"""
    clients: int
    samples: int
    tests: int
    participants: int
    batch: int
    rounds: int
    cores: int
    device: str
    lr: float

    @classmethod
    def told(cls) -> Shape:
        """Return the shape that this process's command line holds."""
        return cls(**json.loads(sys.argv[1]))

    def training(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's images (samples, 3, 32, 32), channels-last and scaled, and labels, on the device."""
        return made(client, self.samples, self.device)

    def testing(self) -> tuple[Tensor, Tensor]:
        """Return the test images and labels of all clients, as `training` does."""
        return made(self.clients, self.clients * self.tests, self.device)


class CNN(nn.Sequential):
    """The benchmark's network without its two dropout layers, which only engine `loop` trains: 1,626,442 parameters.

    It has two 3 x 3 convolutions of 32 and 64 channels, one 2 x 2 max-pooling, and Linear layers of 128 and 10."""

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
    """Return how many images a network classifies correctly."""
    return sum(int((network(a).argmax(1) == b).sum()) for a, b in batches(x, y, CHUNK))


def mark(what: str) -> None:
    """Tell the process that measures the time that a round's training or its evaluation is over."""
    print(MARK, what, flush=True)
