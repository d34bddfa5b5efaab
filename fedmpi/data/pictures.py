"""Bring pictures of files to one size and mode, as uint8 arrays.

Legend of shapes: n pictures, h x w pixels, c channels (3 for RGB, 1 for L)."""
from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedmpi.errors import BadInput
from fedmpi.memory_check import refuse_larger

# Modes of PIL whose values do not fit into 8 bits; converting them would cut them off.
DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")


def decode_pictures(sources: Sequence[tuple[str, object]], size: tuple[int, int] | None, mode: str,
                    before: Sequence[np.ndarray] = ()) -> np.ndarray:
    """Read pictures into one uint8 array (n, h, w, c).

    Args:
        sources: for each picture where it is from, the start of a message, and its file: a path, bytes, or a mapping
            with `bytes`, as Hugging Face stores pictures.
        size: (h, w), to which all are brought; None: all have the size of the first.
        mode: RGB or L; all are converted to it, and transparency is dropped.
        before: pictures (m, h, w, c) that were read before; these must have the same size.

    Raises BadInput if a picture cannot be read, or sizes differ."""
    x, first, channels = None, "", 3 if mode == "RGB" else 1
    if sources and size is not None:
        refuse_many(sources, (*size, channels))
    for i, (where, source) in enumerate(sources):
        mine = decode_picture(where, source, size, mode)
        if x is None:
            if size is None:
                refuse_many(sources, mine.shape)
            x, first = np.empty((len(sources), *mine.shape), np.uint8), where
            refuse_other_size(where, mine, "those before it are", before[0].shape[1:] if before else mine.shape)
        refuse_other_size(where, mine, f"{first} is", x.shape[1:])
        x[i] = mine
    return np.empty((0, *(size or (1, 1)), channels), np.uint8) if x is None else x


def refuse_no_pixels(size: tuple[int, int] | None) -> None:
    """Raise ValueError if the setting `size` asks for pictures without pixels."""
    if size is not None and min(size) < 1:
        raise ValueError(f"size = {list(size)}: give height and width, of a pixel at least")


def refuse_many(sources: Sequence[tuple[str, object]], shape: tuple[int, ...]) -> None:
    """Raise BadInput if pictures of this shape (h, w, c), see `decode_pictures`, are more than fit into memory."""
    refuse_larger(len(sources) * math.prod(shape), f"{sources[0][0]}: {len(sources)} pictures of {shape[0]} x "
                  f"{shape[1]} pixels", "use fewer, or smaller ones by data.size")


def refuse_other_size(where: str, picture: np.ndarray, others: str, shape: tuple[int, ...]) -> None:
    """Raise BadInput if a picture has another shape (h, w, c) than others."""
    if picture.shape != shape:
        raise BadInput(f"{where}: is {picture.shape[0]} x {picture.shape[1]} pixels, and {others} {shape[0]} x "
                       f"{shape[1]}; set data.size, to which all are brought, such as data.size=[32,32]")


def decode_picture(where: str, source: object, size: tuple[int, int] | None, mode: str) -> np.ndarray:
    """Read one picture as uint8 (h, w, c). Raises BadInput."""
    from PIL import Image
    if isinstance(source, Mapping):
        source = source.get("bytes")
    if not isinstance(source, bytes | Path):
        raise BadInput(f"{where}: holds no picture, but {type(source).__name__}; store the bytes of a PNG or JPEG file")
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            if image.mode in DEEP_MODES:
                raise BadInput(f"{where}: has {image.mode} pixels of more than 8 bits; convert the pictures to 8 bits")
            shown = image.convert(mode)
            if size is not None and shown.size != size[::-1]:
                shown = shown.resize(size[::-1], Image.Resampling.BILINEAR)
            pixels = np.asarray(shown, np.uint8)
    # PIL raises any of these for a damaged file; which one depends on the format.
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise BadInput(f"{where}: cannot read the picture ({' '.join(str(error).split())}); repair or remove "
                       "it") from None
    return pixels if pixels.ndim == 3 else pixels[..., None]


def shape_pixels(x: np.ndarray, shape: tuple[int, ...], where: str) -> np.ndarray:
    """Return features (n, d) as uint8 pictures (n, h, w[, c]). Raises BadInput unless they are pixels."""
    if x.shape[1] != math.prod(shape):
        raise BadInput(f"{where}: rows have {x.shape[1]} features, and data.image_shape = {list(shape)} takes "
                       f"{math.prod(shape)} pixels; change it, or name the pixels by data.features")
    if len(x) and (x.min() < 0 or x.max() > 255 or (x != np.rint(x)).any()):
        raise BadInput(f"{where}: features go from {x.min():g} to {x.max():g}, and data.image_shape takes whole "
                       "numbers from 0 to 255; leave it out")
    return x.astype(np.uint8).reshape(len(x), *shape)
