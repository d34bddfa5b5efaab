"""Images that are changed at random each time that a batch takes them: shifted (a crop with padding) and mirrored.

The changes are drawn from (seed, round, client, stream) alone, as batches are, so both engines and any number of ranks
train on the same pixels. Legend: n images of h x w pixels with c channels, b batch."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedmpi.comm.gpu_staging import copy_to_device
from fedmpi.engines.batch_plan import NO_AUGMENTATION, LocalTraining, make_generator

# What is added to the stream of batches to name the stream of their images' changes.
AUGMENTATION_STREAM_OFFSET = 1 << 17


def draw_changes(local: LocalTraining, client: int, stream: int, steps: int) -> np.ndarray:
    """Return the changes of each image of a client's batches, (steps, b, 3) int16: by how many rows and columns it is
    shifted, and whether it is mirrored. What is not asked for is 0, and changes no other draw."""
    generator = make_generator(local.seed, local.round, client, AUGMENTATION_STREAM_OFFSET + stream)
    drawn = generator.random((steps, local.batch, 3), np.float32)
    padding, flip = local.augmentation
    choices = np.array([2 * padding + 1, 2 * padding + 1, 2 if flip else 1])
    return ((drawn * choices).astype(np.int16) - np.array([padding, padding, 0])).astype(np.int16)


def draw_all_changes(local: LocalTraining, clients: Sequence[int], stream: int, steps: int, device: torch.device
                     ) -> Tensor | None:
    """Return the changes of the images of all batches of some clients on their device, (steps, clients, b, 3); None if
    images stay as they are."""
    if local.augmentation == NO_AUGMENTATION:
        return None
    return copy_to_device(np.stack([draw_changes(local, i, stream, steps) for i in clients], 1), device)


def change_images(x: Tensor, changes: Tensor) -> Tensor:
    """Return changed images (n, h, w, c), as stored. Pixels from beyond the border are 0, which is black.

    Args:
        changes: as `draw_changes` returns them, (n, 3)."""
    n, height, width = x.shape[:3]
    down, right, mirrored = changes.long()[..., None].unbind(1)
    rows = torch.arange(height, device=x.device) + down
    columns = torch.arange(width, device=x.device).expand(n, -1)
    columns = torch.where(mirrored > 0, width - 1 - columns, columns) + right
    images = torch.arange(n, device=x.device)[:, None, None]
    found = x[images, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None]]
    beyond = ((rows < 0) | (rows >= height))[:, :, None] | ((columns < 0) | (columns >= width))[:, None]
    return found.masked_fill_(beyond[..., None], 0)
