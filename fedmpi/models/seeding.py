"""The first weights of a network depend on the run's seed alone, whichever generator its code draws them from."""
from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from fedmpi.errors import BadInput
from fedmpi.models.parameters import collect_tensors, is_same


def build_seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return what build() makes with the global generators of PyTorch, NumPy and Python seeded. Afterwards these go on
    as if nothing had been drawn."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            return build()
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


def refuse_other_weights(module: nn.Module, again: nn.Module) -> None:
    """Refuse a network of which two copies of the same seed have other first weights: each rank and each start of the
    run would begin with another one. Raises BadInput."""
    second = collect_tensors(again)
    for name, value in collect_tensors(module).items():
        if not is_same(value, second.get(name)):
            raise BadInput(f"model: {name} has other first values in each copy of the network, although the seed is "
                           "the same; draw them by the global generators of PyTorch, NumPy or Python, which the run "
                           "seeds, or give a generator of your own a seed")
