"""Refuse settings whose arrays are larger than this machine's memory, before anything of that size is made.

Without this the operating system would end the run in the middle, often without a word. Only what a few numbers tell is
looked at: it is a floor of what a run needs, and `fedmpi plan` shows more."""
from __future__ import annotations

import os

from fedmpi.errors import BadInput
from fedmpi.settings import DRAWN_PASSES, KEPT_MODELS, TrainSettings, collect_marks
from fedmpi.text import GIB

# Bytes of a float32, and of the position of a sample in a batch.
NUMBER_BYTES, POSITION_BYTES = 4, 4


def read_machine_memory() -> int:
    """Return the bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def refuse_larger(nbytes: float, what: str, remedy: str) -> None:
    """Raise BadInput if so many bytes are more than this machine has.

    Args:
        what: what takes them, the start of the message.
        remedy: what to do about it, the end of the message."""
    memory = read_machine_memory()
    if nbytes > memory:
        raise BadInput(f"{what} take {format_gib(nbytes)} GiB, and this machine has {format_gib(memory)} GiB of "
                       f"memory; {remedy}")


def format_gib(nbytes: float) -> str:
    """Return bytes in GiB: four digits that count, and never an exponent for what a reader may have to compare."""
    return f"{nbytes / GIB:,.0f}" if 1000 <= nbytes / GIB < 1e15 else f"{nbytes / GIB:.4g}"


def refuse_large_network(parameters: int) -> None:
    """Raise BadInput if a network has more parameters than fit."""
    refuse_larger(NUMBER_BYTES * parameters, f"model: the network's {parameters:,} parameters", "choose a smaller one")


def refuse_large_method(method: object, parameters: int, train: TrainSettings, largest: int,
                        sample_numbers: int) -> None:
    """Raise BadInput if a method's models, or the batches of local training, are larger than memory.

    Args:
        method: its settings that are marked as KEPT_MODELS or DRAWN_PASSES are looked at.
        parameters: of the network.
        train: the section `train` of the configuration.
        largest: training samples of the largest client.
        sample_numbers: numbers of one sample."""
    # `train.steps` replace the epochs, and as many in proportion those of the method.
    batches = -(-largest // train.batch) if train.steps is None else train.steps / train.epochs
    refuse_larger(NUMBER_BYTES * train.batch * sample_numbers, f"train.batch = {train.batch}: samples of one batch",
                  f"lower it: the largest client trains on {largest} samples")
    passes = [("train.epochs", train.epochs)] if train.steps is None else []
    cls: type = type(method)
    for name, found in collect_marks(cls).items():
        number = getattr(method, name, None)
        if number is None:
            continue
        if KEPT_MODELS in found:
            refuse_larger(NUMBER_BYTES * parameters * number, f"method.{name} = {number}: as many models of "
                          f"{parameters:,} parameters", "lower it, or choose a smaller network")
        if DRAWN_PASSES in found:
            passes.append((f"method.{name}", number))
    for name, number in passes:
        refuse_larger(POSITION_BYTES * number * batches * train.batch, f"{name} = {number}: the positions in the "
                      "batches of the largest client", "lower it")
    if train.steps is not None:
        refuse_larger(POSITION_BYTES * train.steps * train.batch, f"train.steps = {train.steps}: the positions in the "
                      "batches of a client", "lower it")
