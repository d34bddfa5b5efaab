"""A small federation of real digits in memory, and changed ones, on which methods are checked."""
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from fedmpi import registry
from fedmpi.data.federation import Federation, Samples
from fedmpi.models.build import build_model
from fedmpi.models.flat import Model
from fedmpi.models.nets import MLP
from fedmpi.task import CLASSIFICATION

# Training samples of each client: they give short, whole and single batches.
CLIENT_SIZES = (20, 1, 57, 3, 10, 33, 11, 8)
# The class of the client that has a single one.
ONLY_CLASS = 7


@cache
def load_digits() -> tuple[np.ndarray, ...]:
    """Return all digits: x (n, 64), y (n,), and what else the data set has."""
    loaded: tuple[np.ndarray, ...] = registry.find_class("datasets", "digits")().load(Path())
    return loaded


class SmallFederation(Federation):
    """Real digits in memory, distributed with label skew: client i has mostly digits near i."""

    def __init__(self, sizes: Sequence[int] = CLIENT_SIZES, test: int = 12, image: bool = False):
        self.sizes, self.classes, self.groups, self.fingerprint = np.array(sizes), 10, None, "in memory"
        self.task = CLASSIFICATION
        x, y, *_ = load_digits()
        # Image data sets are stored as bytes of shape (h, w, c).
        if image:
            x = (x * 255).astype(np.uint8).reshape(-1, 8, 8, 1)
        self.shape, self.dtype = x.shape[1:], x.dtype
        rng, free = np.random.default_rng(0), np.ones(len(y), bool)
        self.parts: list[Samples] = []
        for i, n in enumerate(sizes):
            likely = np.where((y - i) % 10 < 3, 20., 1.) * free
            mine = rng.choice(len(y), n + test, replace=False, p=likely / likely.sum())
            free[mine] = False
            self.parts.append(Samples(x[mine[:n]], y[mine[:n]], x[:0], y[:0], x[mine[n:]], y[mine[n:]]))

    def client(self, i: int) -> Samples:
        """Return a client's samples."""
        return self.parts[i]


class ChangedFederation(SmallFederation):
    """The same federation for a subclass to change."""

    def __init__(self, original: SmallFederation):
        self.__dict__.update(vars(original))
        self.original = original

    def client(self, i: int) -> Samples:
        """Return a client's samples."""
        return self.original.client(i)


class OtherTests(ChangedFederation):
    """The same federation with permuted test labels."""

    def client(self, i: int) -> Samples:
        """Return a client's samples, with other test labels."""
        s = self.original.client(i)
        return s._replace(y_test=np.random.default_rng(i).permutation(9 - s.y_test))


class OddClients(ChangedFederation):
    """A federation with clients that real splits have: client 2 has no test samples, client 5 has a single class, and
    client 1 of CLIENT_SIZES has a single sample."""

    def client(self, i: int) -> Samples:
        """Return a client's samples."""
        s = self.original.client(i)
        if i == 2:
            return s._replace(x_test=s.x_test[:0], y_test=s.y_test[:0])
        return s._replace(y_train=s.y_train * 0 + ONLY_CLASS) if i == 5 else s


class Renumbered(ChangedFederation):
    """The same clients under other numbers: client i is the original's order[i]."""

    def __init__(self, original: SmallFederation, order: np.ndarray):
        super().__init__(original)
        self.order, self.sizes = order, original.sizes[order]

    def client(self, i: int) -> Samples:
        """Return the samples of the original's client."""
        return self.original.client(int(self.order[i]))


def build_small_network() -> Model:
    """Return a small network for the digits."""
    return build_model(MLP(hidden=16), (64,), np.dtype("float32"), 10, seed=5)
