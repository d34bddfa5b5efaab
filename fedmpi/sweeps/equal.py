"""Rows of equal work: the local training with which one run makes as many gradient steps as another.

Steps are counted without data, on a small network: they do not depend on it. A row that asks for `equal_steps: ROW`
mostly is Local, which then shows what the steps of ROW are worth without any communication."""
from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np

from fedmpi.commands.planned_steps import count_final_steps, plan_stages
from fedmpi.config.schema import Config
from fedmpi.errors import BadInput
from fedmpi.models.build import build_model
from fedmpi.models.flat import Model
from fedmpi.models.nets import MLP

# The shape and the classes of the samples on which steps are counted.
SHAPE, CLASSES = (4,), 3
# Batches of clients of two sizes: in epochs, the answer must be the same for both.
BATCHES = (40, 1000)
# A number of epochs that is nearer to a whole one is taken for it.
EPOCHS_TOLERANCE = .05


def find_equal_setting(own: Config, other: Config) -> str:
    """Return the `key=value` with which a run of `own` makes as many steps as one of `other`, to rounding. Raises
    BadInput if no whole number of epochs does, or the steps of either cannot be counted."""
    refuse_unknown_work(own, "this row")
    refuse_unknown_work(other, "the row that it names")
    if own.faults.drop != other.faults.drop:
        raise BadInput(f"equal_steps: faults.drop is {own.faults.drop} for this row and {other.faults.drop} for the "
                       "row that it names, and steps of updates that are lost are not counted; give both the same")
    if own.train.steps is not None:
        steps = [find_equal_length(own, other, batches) for batches in BATCHES]
        if round(steps[0]) < 1:
            raise BadInput(f"equal_steps: this row would need {steps[0]:.4g} train.steps, and a round has at least "
                           "one; the row that it names makes too few steps")
        if abs(steps[1] - steps[0]) > EPOCHS_TOLERANCE * steps[0]:
            raise BadInput("equal_steps: the row that it names trains in epochs, whose steps depend on a client's "
                           "samples, and this row in train.steps; give both train.steps, or both epochs")
        return f"train.steps={round(steps[0])}"
    epochs = [find_equal_length(own, other, batches) for batches in BATCHES]
    if round(epochs[0]) < 1 or any(abs(found - round(epochs[0])) > EPOCHS_TOLERANCE * found for found in epochs):
        small, large = (count_samples(own, other, batches) for batches in BATCHES)
        raise BadInput(f"equal_steps: a client of {small} samples would need {epochs[0]:.4g} epochs and one of "
                       f"{large} {epochs[1]:.4g}, not the same whole number from 1 on; give the column train.steps")
    return f"train.epochs={round(epochs[0])}"


def refuse_unknown_work(config: Config, whose: str) -> None:
    """Raise BadInput if settings decide by time who takes part, or who makes all its steps, if training itself
    decides how many rounds there are, or if the method makes steps that no plan counts.

    Args:
        whose: the row, for the message."""
    limit = "availability.file" if config.availability else (
        "stragglers.deadline" if config.stragglers and config.stragglers.deadline is not None else "")
    if limit:
        raise BadInput(f"equal_steps: {limit} is set for {whose}, so who takes part, or for how many steps, depends on "
                       f"time, and no number of steps is equal work; leave {limit.split('.')[0]} or equal_steps out")
    train = config.train
    if train.sampling != "uniform" and train.steps is None and train.participation != 1:
        raise BadInput(f"equal_steps: train.sampling = {train.sampling} for {whose} draws large clients, which make "
                       "more steps of an epoch, more or less often than others, and no number of epochs is equal "
                       "work; set train.steps, or leave sampling or equal_steps out")
    if config.stop:
        raise BadInput(f"equal_steps: stop is set for {whose}, so its training decides after how many rounds it ends, "
                       "and no number of steps is equal work; leave stop or equal_steps out")
    if uncounted := config.method.describe_uncounted_steps(config.data.clients - config.data.new_clients):
        raise BadInput(f"equal_steps: {config.method.title} of {whose} makes steps that no plan counts "
                       f"({uncounted}), so no number of steps is equal work; name another row")


def find_equal_length(own: Config, other: Config, batches: int) -> float:
    """Return the `train.steps`, or `train.epochs` without them, with which `own` makes as many steps as `other`, for
    clients with so many batches of samples. Steps and passes of the method's own, such as those of FedRep for its head,
    stay as they are. Raises BadInput."""
    samples, train = count_samples(own, other, batches), own.train
    length, key = (train.epochs, "epochs") if train.steps is None else (train.steps, "steps")
    steps, with_twice = (count_total_steps(with_length(own, count), samples) for count in (length, 2 * length))
    if with_twice <= steps:
        raise BadInput(f"equal_steps: {own.method.title} of this row makes {steps:.4g} steps whatever train.{key} is, "
                       "so it cannot do the work of another row; leave equal_steps out")
    return length + length * (count_total_steps(other, samples) - steps) / (with_twice - steps)


def with_length(config: Config, length: int) -> Config:
    """Return settings with other `train.steps`, or `train.epochs` without them."""
    train = config.train
    return replace(config, train=(replace(train, epochs=length) if train.steps is None
                                  else replace(train, steps=length)))


def count_samples(own: Config, other: Config, batches: int) -> int:
    """Return the samples of a client that has so many batches, or with batches of two sizes a multiple of so many of
    each: both rows train on the same clients."""
    return batches * math.lcm(own.train.batch, other.train.batch)


def count_total_steps(config: Config, samples: int) -> float:
    """Return the steps behind a client's evaluated model at the end of a run, mean over clients of so many samples."""
    clients = config.data.clients - config.data.new_clients
    try:
        method = config.method.with_model(build_counted_network())
    except BadInput as error:
        raise BadInput(f"equal_steps: steps are counted on a network of two layers, on which the other row's settings "
                       f"do not fit ({error}); name another row") from None
    sizes = np.full(clients, samples)
    shared, mine = method.init(clients)
    federation = SimpleNamespace(clients=clients, sizes=sizes, shape=SHAPE, dtype=np.dtype("float32"))
    case = SimpleNamespace(method=method, config=config, federation=federation, shared=shared, mine=mine)
    return sum(count_final_steps(plan_stages(case)).values())


@cache
def build_counted_network() -> Model:
    """Return the network on which steps are counted."""
    return build_model(MLP(hidden=4), SHAPE, np.dtype("float32"), CLASSES, seed=0)
