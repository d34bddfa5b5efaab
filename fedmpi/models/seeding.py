"""What a network's code draws depends on the run's seed alone, whichever global generator it draws from: that of
PyTorch, of NumPy or of Python. This holds for first weights, and for draws of a forward pass, such as which layers it
skips."""
from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from fedmpi.errors import BadInput
from fedmpi.models.parameters import collect_tensors, is_same
from fedmpi.torch_compat import seed_generators

Made = TypeVar("Made")


def seed_all_generators(number: int) -> None:
    """Seed the global generators of PyTorch (also on GPUs that are in use), NumPy and Python."""
    seed_generators(number)
    seed_plain_generators(number)


def seed_plain_generators(number: int) -> None:
    """Seed the global generators of NumPy and Python."""
    np.random.seed(number % 2**32)
    random.seed(number)


@contextmanager
def restore_plain_generators() -> Iterator[None]:
    """Let the global generators of NumPy and Python go on afterwards as if nothing had been drawn from them."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def read_plain_generators() -> tuple[object, ...]:
    """Return the states of the global generators of NumPy and Python, to be compared."""
    kind, words, *rest = np.random.get_state()
    return random.getstate(), kind, words.tobytes(), *rest


def read_all_generators() -> tuple[object, ...]:
    """Return the states of the global generators of PyTorch (also on GPUs that are in use), NumPy and Python, to be
    compared."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return *(state.numpy().tobytes() for state in (torch.get_rng_state(), *on_gpus)), *read_plain_generators()


def build_seeded(build: Callable[[], Made], seed: int) -> Made:
    """Return what build() makes with the global generators of PyTorch, NumPy and Python seeded. Afterwards these go on
    as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]), restore_plain_generators():
        # also for a GPU that build() is the first to use
        torch.manual_seed(seed)
        seed_plain_generators(seed)
        return build()


def refuse_other_weights(module: nn.Module, again: nn.Module) -> None:
    """Refuse a network of which two copies of the same seed have other first weights: each rank and each start of the
    run would begin with another one. Raises BadInput."""
    second = collect_tensors(again)
    for name, value in collect_tensors(module).items():
        if not is_same(value, second.get(name)):
            raise BadInput(f"model: {name} has other first values in each copy of the network, although the seed is "
                           "the same; draw them by the global generators of PyTorch, NumPy or Python, which the run "
                           "seeds, or give a generator of your own a seed")
