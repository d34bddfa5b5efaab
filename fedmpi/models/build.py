"""Make the Model of a run from its configuration and the federation's samples."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from fedmpi.errors import BadInput, FaultyCode
from fedmpi.memory_check import refuse_large_network
from fedmpi.models.checks import refuse_kept_state
from fedmpi.models.flat import Model
from fedmpi.models.max_pooling import pool_first, skip_indices
from fedmpi.models.nets import BUILT_IN, Custom
from fedmpi.models.seeding import build_seeded, refuse_other_weights
from fedmpi.own_code.failures import blame_own_code
from fedmpi.own_code.places import describe_definition
from fedmpi.text import count_words

if TYPE_CHECKING:
    import numpy as np

# Pixels become x / HALF_PIXEL_RANGE - 1, which is (x / 255 - .5) / .5.
HALF_PIXEL_RANGE = 127.5
# Samples of one model in one forward pass without gradients. With more of them, a CPU's caches lose a layer's outputs
# before the next layer reads them: cnn4 takes 174 us a sample in passes of 500, 133 in passes of 250.
SAMPLES_PER_PASS = 250


def as_input(x: Tensor) -> Tensor:
    """Turn stored samples into what networks take: images (n, h, w, c) uint8 become float (n, c, h, w); features and
    tokens (n, d) stay as they are.

    The permuted view is channels-last in memory, without a copy."""
    if x.dtype == torch.uint8:
        x = x.float().div_(HALF_PIXEL_RANGE).sub_(1)
    return x.movedim(-1, 1) if x.ndim == 4 else x


def as_stored(features: Tensor) -> Tensor:
    """Turn what a network gives into samples as stored, of which `as_input` makes it again: maps (n, c, h, w) become
    (n, h, w, c), all else stays as it is."""
    return features.movedim(1, -1) if features.ndim == 4 else features


def make_blank_samples(shape: tuple[int, ...], dtype: np.dtype | str, n: int = 1) -> Tensor:
    """Return n equal samples as stored, (n, *shape), to try a network on. `dtype` is NumPy's, or its name.

    They are not zeros: a text of zeros is all padding, and samples without any variance cannot be normalised. Tokens
    are 1 with a 0 at the end, and other values are 1, 2 and 3 in turn."""
    like, size = getattr(torch, str(dtype)), math.prod(shape)
    if like == torch.int32:
        sample = torch.ones(size, dtype=like)
        sample[1:][-1:] = 0
    else:
        sample = (torch.arange(size) % 3 + 1).to(like)
    return sample.view(1, *shape).repeat(n, *(1 for _ in shape))


class ModelSettings(Protocol):
    """What a configuration says of the network: an object of a class of models.nets, or of the user's own."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return a new network for samples of this shape, as networks take them, whose outputs are (b, classes)."""


def count_parameters(settings: ModelSettings, shape: tuple[int, ...], classes: int) -> int:
    """Return how many parameters a network would have, without making them. Raises BadInput for more than can be
    counted."""
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            return sum(value.numel() for value in settings.build(shape, classes).parameters())
    except RuntimeError as error:
        raise BadInput(f"model: no tensor can be as large as these settings ask for ({str(error).splitlines()[0]}); "
                       "choose a smaller network") from None


def build_model(settings: ModelSettings, shape: tuple[int, ...], dtype: np.dtype | str, classes: int,
                seed: int) -> Model:
    """Build the network for the samples of a federation. Raises BadInput if they do not fit.

    Args:
        settings: of the network; `head` and `policy` count if it has them.
        shape: of a sample as stored: (h, w, c) of an image, or (d,).
        dtype: of a stored sample, NumPy's or its name.
        seed: of the first parameters."""
    example = as_input(make_blank_samples(shape, dtype, 2))
    # Classes of one's own may lack them.
    head, policy = getattr(settings, "head", ()), getattr(settings, "policy", None)
    # Classes of one's own may fail to build on a device without memory.
    if type(settings) in BUILT_IN.values():
        refuse_large_network(count_parameters(settings, tuple(example.shape[1:]), classes))

    path = settings.path if isinstance(settings, Custom) else None

    def build() -> nn.Module:
        with blame_own_code("model: the network cannot be built", always=path is not None):
            module = settings.build(tuple(example.shape[1:]), classes)
        if not isinstance(module, nn.Module):
            made = f"{path}()" if path else f"{describe_definition(type(settings).build)}build()"
            raise BadInput(f"model: {made} must return a torch.nn.Module, not {type(module).__name__}")
        try:
            list(module.modules())
        except AttributeError:
            raise FaultyCode(f"model: {describe_definition(type(module).__init__)}__init__() must call "
                             "super().__init__() before anything else") from None
        return skip_indices(pool_first(module))
    with blame_own_code("model"):
        model = Model(build, example, seed, head, policy)
        if type(settings) not in BUILT_IN.values():
            refuse_other_weights(model.module, build_seeded(build, seed))
            refuse_kept_state(model, example)
        with torch.no_grad():
            logits = model(model.start, example)
    if logits.shape != (2, classes):
        wanted = f"the data have {classes} classes" if classes > 1 else "a target is a single number"
        raise BadInput(f"model: the network gives outputs of shape {tuple(logits.shape[1:])}, but {wanted}; its last "
                       f"Linear layer must have {count_words(classes, 'output')}")
    return model
