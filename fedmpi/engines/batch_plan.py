"""Batches, subsets and noise of a client's local training, drawn from (seed, round, client, stream) alone.

No generator is kept from one draw to the next, so a restart, another rank or another order of clients draws the
same."""
from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from fedmpi.config.schema import Config, Train
from fedmpi.engines.optimizer import PLAIN_SGD, Optimizer
from fedmpi.engines.step_counter import MAIN, check_kind

# Stands for the round in draws that are the same in all rounds.
FIXED_ROUND = 2 ** 32 - 2
# What is added to the stream of batches to name the stream of their noise.
NOISE_STREAM_OFFSET = 1 << 16
# Noise travels to a GPU in pieces of at most so many bytes.
NOISE_BYTES_AT_ONCE = 32 << 20


# Numbers of samples, batches or steps: of one client, or an array or a tensor of several.
Count = TypeVar("Count", int, np.ndarray, torch.Tensor)


class Augmentation(NamedTuple):
    """How images are changed at random, see engines/augmentation.py."""
    # pixels by which a crop shifts an image at most
    padding: int = 0
    flip: bool = False


NO_AUGMENTATION = Augmentation()


class Portion(NamedTuple):
    """The part of its steps that a client makes if it has no time for all (`stragglers.late: partial`)."""
    made: int
    whole: int

    def shorten(self, steps: int) -> int:
        """Return how many of these steps are made: at least one, if there are any."""
        return min(steps, max(1, steps * self.made // self.whole))


class LocalTraining(NamedTuple):
    """The settings of the local training of one round."""
    seed: int
    round: int
    batch: int
    epochs: int
    # steps in place of epochs; None: the epochs count
    steps: int | None
    lr: float
    momentum: float
    # what the schedule has multiplied the learning rate by so far; `lr` contains it
    decay: float = 1.
    # what its steps count as, see engines/step_counter.py
    kind: str = MAIN
    optimizer: Optimizer = PLAIN_SGD
    # smoothing of labels while a network is trained
    smoothing: float = 0.
    augmentation: Augmentation = NO_AUGMENTATION
    # the part of its steps that one client makes; None: all
    portion: Portion | None = None
    # whether the last batch of an epoch is left out if it is shorter
    drop_last: bool = False
    # the learning rate that the schedule multiplies; None: `lr` itself
    full_lr: float | None = None


class BatchPlan(NamedTuple):
    """The batches of one client, in the order of its steps."""
    # (steps, batch) int32 positions among the client's samples; a short batch ends with zeros
    index: np.ndarray
    # (steps,) number of samples of each batch
    count: np.ndarray


def draw_batches(local: LocalTraining, client: int, stream: int, n: int) -> BatchPlan:
    """Draw the batches of a client with n samples. Every epoch has a new order; its last batch may be shorter, or is
    left out with `drop_last`."""
    per_epoch, steps = count_batches(n, local.batch, local.drop_last), count_local_steps(local, n)
    epochs = -(-steps // per_epoch)
    generator = make_generator(local.seed, local.round, client, stream)
    index = np.zeros((epochs, per_epoch * local.batch), np.int32)
    taken = min(n, per_epoch * local.batch)
    for epoch in range(epochs):
        index[epoch, :taken] = generator.permutation(n)[:taken]
    count = np.full((epochs, per_epoch), local.batch, np.int64)
    count[:, -1] = taken - (per_epoch - 1) * local.batch
    return BatchPlan(index.reshape(-1, local.batch)[:steps], count.reshape(-1)[:steps])


def count_batches(n: Count, batch: int, drop_last: bool) -> Count | int:
    """Return into how many batches an epoch over n samples falls.

    Args:
        n: a number of samples, or an array or a tensor of such.
        batch: samples of a batch.
        drop_last: whether a last batch that is shorter is left out, unless it is the only one."""
    if not drop_last:
        return -(-n // batch)
    whole = n // batch
    return whole + ((whole == 0) & (n > 0))


def get_local_training(config: Config, round: int, for_evaluation: bool = False, decays: bool = True) -> LocalTraining:
    """Return the local training of a round by the run's settings; round -1 is the one before the first.

    Args:
        for_evaluation: for what clients train only to be evaluated before this round. It has the learning rate of the
            round just trained, since a schedule may have none left after the last round.
        decays: whether the learning rate follows the run's schedule. What begins anew, as the model of a new client,
            has `train.lr` as it is."""
    train = config.train
    decay = train.rate_factor(max(round - 1, 0) if for_evaluation else round, config.rounds) if decays else 1.
    return LocalTraining(config.seed, round, train.batch, train.epochs, train.steps, train.lr * decay, train.momentum,
                         decay, optimizer=get_optimizer(train), smoothing=train.label_smoothing,
                         augmentation=Augmentation(train.padding if "crop" in train.augment else 0,
                                                   "flip" in train.augment),
                         drop_last=train.drop_last, full_lr=train.lr)


def get_optimizer(train: Train) -> Optimizer:
    """Return the optimizer that the section `train` asks for."""
    return Optimizer(train.optimizer, train.weight_decay, train.nesterov, train.clip_norm)


def change_batches(
    local: LocalTraining, epochs: int | None, steps: int | None = None, kind: str | None = None
) -> LocalTraining:
    """Return the same local training with other batches.

    Args:
        epochs: passes over the samples; None keeps the number as it is. If `local.steps` replace `local.epochs`, as
            many steps in proportion replace these epochs, rounded up.
        steps: a number of steps that replaces the epochs.
        kind: what the steps count as; None keeps the kind. Fine-tuning has the learning rate without the run's
            schedule, which may have left next to nothing. Raises ValueError for an unknown one."""
    if kind is not None:
        local = local._replace(kind=check_kind(kind))
        if kind == "fine_tuning":
            local = local._replace(lr=find_full_lr(local), decay=1.)
    if epochs is None:
        return local if steps is None else local._replace(steps=steps)
    if steps is None and local.steps is not None:
        steps = -(-epochs * local.steps // max(1, local.epochs))
    return local._replace(epochs=epochs, steps=steps)


def find_full_lr(local: LocalTraining) -> float:
    """Return the learning rate without lr_decay, schedule and warm-up."""
    return local.lr if local.full_lr is None else local.full_lr


def make_generator(seed: int, round: int, client: int, stream: int) -> np.random.Generator:
    """Return the random generator of one use of the seed; the warm-up before the first round is round -1."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, round % 2 ** 32, client, stream))))


def draw_noise(local: LocalTraining, client: int, stream: int, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Yield standard normal noise (batch, *shape) for a client's batches, one after another."""
    generator = make_generator(local.seed, local.round, client, NOISE_STREAM_OFFSET + stream)
    while True:
        yield generator.standard_normal((local.batch, *shape), np.float32)


def stack_noise(noise: Iterator[np.ndarray], steps: int) -> np.ndarray:
    """Return the noise of the next steps, (steps, batch, *shape)."""
    return next(noise)[None] if steps == 1 else np.stack([*islice(noise, steps)])


def count_local_steps(local: LocalTraining, n: Count) -> Count | int:
    """Return how many steps a client with n samples takes; a tensor of several n gives a tensor."""
    steps = local.epochs * count_batches(n, local.batch, local.drop_last) if local.steps is None else local.steps
    return steps if local.portion is None else local.portion.shorten(steps)


def choose_steps_at_once(shape: tuple[int, ...], steps: int, device: torch.device) -> int:
    """Return for how many steps numbers of this shape are drawn at once.

    On a GPU these are all steps whose numbers fit in NOISE_BYTES_AT_ONCE, since they travel together. On a CPU it is
    one step, so that its numbers are still in the cache."""
    each = 4 * int(np.prod(shape, dtype=np.int64))
    return max(1, min(steps, NOISE_BYTES_AT_ONCE // max(each, 1))) if device.type == "cuda" else 1


def draw_subset(local: LocalTraining, client: int, stream: int, n: int, share: float, fixed: bool,
                rest: bool) -> np.ndarray:
    """Return the positions of a random share of n samples, or with `rest` of the other samples; at least one."""
    order = make_generator(local.seed, FIXED_ROUND if fixed else local.round, client, stream).permutation(n)
    count = count_subset(n, share, rest)
    return order[n - count:] if rest else order[:count]


def count_subset(n: int, share: float, rest: bool) -> int:
    """Return how many samples a random share of n samples has, or with `rest` the other ones; at least one."""
    # 1e-9 is added because .7 * 10 must not become 6 if it is computed as 6.9999...
    kept = max(1, int(share * n + 1e-9))
    return n - min(kept, n - 1) if rest else kept
