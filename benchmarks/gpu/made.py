"""Federations in memory for these steps: scikit-learn's digits, and random samples of the shapes of real data sets."""
from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedmpi.data.federation import Samples

# Training samples of clients: short, whole and single batches.
SIZES = (20, 1, 57, 3, 10, 33, 11, 8)
TESTS = 12
# Vocabulary of the random texts.
WORDS = 2_000


class Digits:
    """Real digits; client i has mostly those near i. With `image` they are 8 x 8 images of bytes."""
    classes, groups, group_names, name = 10, None, None, "digits"

    def __init__(self, sizes=SIZES, image: bool = False):
        self.sizes, self.fingerprint = np.array(sizes), "digits in memory"
        x, y = load_digits()
        if image:
            x = (x * 255).astype(np.uint8).reshape(-1, 8, 8, 1)
        self.shape, self.dtype = x.shape[1:], x.dtype
        draw, free, self.parts = np.random.default_rng(0), np.ones(len(y), bool), []
        for i, n in enumerate(sizes):
            likely = np.where((y - i) % 10 < 3, 20., 1.) * free
            own = draw.choice(len(y), n + TESTS, replace=False, p=likely / likely.sum())
            free[own] = False
            self.parts.append(Samples(x[own[:n]], y[own[:n]], x[:0], y[:0], x[own[n:]], y[own[n:]]))

    def client(self, i: int) -> Samples:
        return self.parts[i]


@cache
def load_digits():
    from fedmpi import registry
    x, y, *_ = registry.find_class("datasets", "digits")().load(Path())
    return x, y


@dataclass
class Texts:
    """Random texts of word numbers, for fasttext."""
    sizes: np.ndarray
    length: int = 24
    tests: int = TESTS
    classes, groups, group_names, name, fingerprint, vocabulary = 4, None, None, "texts", "made texts", WORDS

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    @property
    def dtype(self):
        return np.dtype("int32")

    def client(self, i: int) -> Samples:
        draw = np.random.default_rng((i, 7))

        def part(n):
            return draw.integers(0, WORDS, (n, self.length)).astype(np.int32), draw.integers(0, self.classes, n)
        return Samples(*part(int(self.sizes[i])), *part(0), *part(self.tests))


class TinyCNN(nn.Sequential):
    """A convolutional network for 8 x 8 images that is small enough to try every method on a CPU."""

    def __init__(self):
        super().__init__(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 10))


def images(sizes, shape: str, tests: int = TESTS):
    """Return random images of the shape of a data set: mnist (28 x 28 x 1) or cifar10 (32 x 32 x 3)."""
    from benchmarks.synthetic import SHAPES, Synthetic
    pixels, classes = SHAPES[shape]
    return Synthetic(pixels, classes, np.array(sizes), tests)


# model -> its section of a configuration, and the samples that it is tried on
MODELS = {
    "mlp": ({"name": "mlp", "hidden": 16}, lambda sizes: Digits(sizes)),
    "tiny": ({"name": "benchmarks.gpu.made:TinyCNN"}, lambda sizes: Digits(sizes, image=True)),
    "lenet5": ({"name": "lenet5"}, lambda sizes: images(sizes, "mnist")),
    "cnn4": ({"name": "cnn4", "width": 64}, lambda sizes: images(sizes, "mnist")),
    "resnet18": ({"name": "resnet18"}, lambda sizes: images(sizes, "cifar10")),
    "fasttext": ({"name": "fasttext", "vocabulary": WORDS}, lambda sizes: Texts(np.array(sizes)))}


def write_arrays(path: Path, shape: str, n: int) -> Path:
    """Write n random images as the .npz that `data: {name: arrays}` reads."""
    from benchmarks.synthetic import SHAPES
    pixels, classes = SHAPES[shape]
    draw = np.random.default_rng(0)
    if not path.exists():
        np.savez(path, x_train=draw.integers(0, 256, (n, *pixels), np.uint8), y_train=draw.integers(0, classes, n))
    return path


def seeded(*shape: int, device, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
    """Return standard normal numbers that are the same on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).to(device)
