"""Make the Model of a run from its configuration and the federation's samples."""
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedmpi.errors import BadInput
from fedmpi.models.flat import Model
from fedmpi.models.pool_before_relu import pool_first

if TYPE_CHECKING:
    import numpy as np

# Pixels become x / HALF_PIXEL_RANGE - 1, which is (x / 255 - .5) / .5.
HALF_PIXEL_RANGE = 127.5


def as_input(x: Tensor) -> Tensor:
    """Turn stored samples into what networks take: images (n, h, w, c) uint8 become float (n, c, h, w); features and
    tokens (n, d) stay as they are.

    The permuted view is channels-last in memory, without a copy."""
    if x.dtype == torch.uint8:
        x = x.float().div_(HALF_PIXEL_RANGE).sub_(1)
    return x.movedim(-1, 1) if x.ndim == 4 else x


def make_blank_samples(shape: tuple[int, ...], dtype: np.dtype | str, n: int = 1) -> Tensor:
    """Return n samples of zeros as stored, (n, *shape). `dtype` is NumPy's, or its name."""
    return torch.zeros((n, *shape), dtype=getattr(torch, str(dtype)))


def build_model(settings, shape: tuple[int, ...], dtype: np.dtype | str, classes: int, seed: int) -> Model:
    """Build the network for the samples of a federation. Raises BadInput if they do not fit.

    Args:
        settings: of a class of models.nets, or of the user's own, with `build(shape, classes)`.
        shape: of a sample as stored: (h, w, c) of an image, or (d,).
        dtype: of a stored sample, NumPy's or its name.
        seed: of the first parameters."""
    example = as_input(make_blank_samples(shape, dtype, 2))
    head, policy = getattr(settings, "head", ()), getattr(settings, "policy", None)      # not every class has them
    model = Model(lambda: pool_first(settings.build(tuple(example.shape[1:]), classes)), example, seed, head, policy)
    with torch.no_grad():
        logits = model(model.start, example)
    if logits.shape != (2, classes):
        raise BadInput(f"model: the network gives outputs of shape {tuple(logits.shape[1:])}, but the data have "
                       f"{classes} classes; its last Linear layer must have {classes} outputs")
    return model
