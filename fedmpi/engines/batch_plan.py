"""Which samples a client's SGD steps use: drawn from (seed, round, client, stream) alone, so that no generator has
a state, and a restart, another rank or another order of clients draws the same."""
from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from fedmpi.comm.gpu_staging import sent as sent  # what is drawn here is sent from here
from fedmpi.config.schema import Config
from fedmpi.engines.step_counter import MAIN, check_kind

FIXED_ROUND = 2 ** 32 - 2      # in place of a round: the same draw in all rounds
NOISE_STREAM_OFFSET = 1 << 16           # between a stream of batches and that of their noise
NOISE_BYTES_AT_ONCE = 32 << 20       # bytes of noise that travel to a GPU at once


class LocalTraining(NamedTuple):
    """The local training of one round."""
    seed: int
    round: int
    batch: int
    epochs: int
    steps: int | None      # in place of these epochs
    lr: float
    momentum: float
    decay: float = 1.      # of the learning rate since the first round, which `lr` contains
    kind: str = MAIN       # of its steps, see engines/step_counter.py


class BatchPlan(NamedTuple):
    index: np.ndarray      # (steps, batch) int32 positions among the client's samples, 0 where a batch is short
    count: np.ndarray      # (steps,) samples of each batch


def draw_batches(local: LocalTraining, client: int, stream: int, n: int) -> BatchPlan:
    """Draw the batches of one client with n samples: every epoch a new order, its last batch shorter if need be."""
    per_epoch, steps = -(-n // local.batch), count_local_steps(local, n)
    epochs = -(-steps // per_epoch)
    generator = make_generator(local.seed, local.round, client, stream)
    index = np.zeros((epochs, per_epoch * local.batch), np.int32)
    for epoch in range(epochs):
        index[epoch, :n] = generator.permutation(n)
    count = np.full((epochs, per_epoch), local.batch, np.int64)
    count[:, -1] = n - (per_epoch - 1) * local.batch
    return BatchPlan(index.reshape(-1, local.batch)[:steps], count.reshape(-1)[:steps])


def get_local_training(config: Config, when: int) -> LocalTraining:
    """Return the local training of round `when` as the settings have it; -1 is the round before the first one."""
    t = config.train
    decay = t.lr_decay ** max(0, when)
    return LocalTraining(config.seed, when, t.batch, t.epochs, t.steps, t.lr * decay, t.momentum, decay)


def change_batches(
    local: LocalTraining, epochs: int | None, steps: int | None = None, kind: str | None = None
) -> LocalTraining:
    """Return the local training of so many epochs, or steps where given; None epochs: as it is. Its steps are counted
    as of this kind; None: as before.

    If `local.steps` stand in place of `local.epochs` epochs, as many in proportion stand in place of these, rounded
    up."""
    local = local if kind is None else local._replace(kind=check_kind(kind))
    if epochs is None:
        return local
    if steps is None and local.steps is not None:
        steps = -(-epochs * local.steps // max(1, local.epochs))
    return local._replace(epochs=epochs, steps=steps)


def make_generator(seed: int, when: int, client: int, stream: int) -> np.random.Generator:
    """Return the generator of one use of the seed; the warm-up before the first round is round -1."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, when % 2 ** 32, client, stream))))


def draw_noise(local: LocalTraining, client: int, stream: int, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Yield standard normal noise (batch, *shape) for a client's batches, one after another."""
    generator = make_generator(local.seed, local.round, client, NOISE_STREAM_OFFSET + stream)
    while True:
        yield generator.standard_normal((local.batch, *shape), np.float32)


def stack_noise(noise: Iterator[np.ndarray], steps: int) -> np.ndarray:
    """Return the noise of the next steps, (steps, batch, *shape)."""
    return next(noise)[None] if steps == 1 else np.stack([*islice(noise, steps)])


def count_local_steps(local: LocalTraining, n: int) -> int:
    """Return how many steps a client with n samples takes."""
    return local.epochs * -(-n // local.batch) if local.steps is None else local.steps


def choose_steps_at_once(shape: tuple[int, ...], steps: int, device: torch.device) -> int:
    """Return for how many steps numbers of a shape are drawn at once: all that are few enough on a GPU, to which they
    travel together; one on a CPU, in whose cache they then are."""
    each = 4 * int(np.prod(shape, dtype=np.int64))
    return max(1, min(steps, NOISE_BYTES_AT_ONCE // max(each, 1))) if device.type == "cuda" else 1


def draw_subset(local: LocalTraining, client: int, stream: int, n: int, share: float, fixed: bool,
                rest: bool) -> np.ndarray:
    """Return the positions of a random share of n samples, at least one, or of the others (at least one too)."""
    order = make_generator(local.seed, FIXED_ROUND if fixed else local.round, client, stream).permutation(n)
    kept = max(1, int(share * n + 1e-9))
    return order[min(kept, n - 1):] if rest else order[:kept]
