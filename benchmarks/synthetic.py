"""A federation of random samples in memory, with the interface of data.federation.Federation."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmpi.data.federation import Samples

SHAPES = {"cifar100": ((32, 32, 3), 100), "cifar10": ((32, 32, 3), 10), "mnist": ((28, 28, 1), 10),
          "digits": ((64,), 10)}


@dataclass
class Synthetic:
    """Random uint8 images or float32 vectors.

    Args:
        sizes: (N,) training samples per client
        tests: test samples per client"""
    shape: tuple[int, ...]
    classes: int
    sizes: np.ndarray
    tests: int = 10
    groups = None
    name = "synthetic"
    fingerprint = "synthetic"

    @property
    def dtype(self) -> str:
        return "uint8" if len(self.shape) == 3 else "float32"

    @property
    def counts(self) -> np.ndarray:
        return np.stack([self.sizes, np.zeros_like(self.sizes), np.full_like(self.sizes, self.tests)], 1)

    def client(self, i: int) -> Samples:
        generator = np.random.default_rng((i, len(self.sizes)))

        def part(n):
            x = generator.integers(0, 256, (n, *self.shape), np.uint8)
            x = x if self.dtype == "uint8" else (x / 255).astype(np.float32)
            return x, generator.integers(0, self.classes, n)
        return Samples(*part(int(self.sizes[i])), *part(0), *part(self.tests))
