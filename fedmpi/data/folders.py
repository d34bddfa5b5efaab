"""Photographs in the folders of Tiny-ImageNet: train/CLASS/images/*, val/images/*, val/val_annotations.txt."""
from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmpi.data.samples import Dataset
from fedmpi.errors import BadInput


def files(folder: Path) -> list[Path]:
    """List what tells one unpacked folder from another."""
    return [folder / "train", folder / "val" / "images", annotations(folder)]


def annotations(folder: Path) -> Path:
    return folder / "val" / "val_annotations.txt"


def read_folders(folder: Path) -> Dataset:
    """Read all images; the classes are numbered in the order of their folders' names. Raises BadInput."""
    try:
        classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
        number = {name: k for k, name in enumerate(classes)}
        train = [(path, k) for name, k in number.items()
                 for path in sorted((folder / "train" / name / "images").iterdir())]
        test = [(folder / "val" / "images" / name, number[label]) for name, label in labelled(annotations(folder))]
    except OSError as error:
        raise BadInput(f"{error.filename}: cannot read Tiny-ImageNet: {error.strerror}; unpack the whole archive "
                       f"again as {folder}") from None
    except KeyError as error:
        raise BadInput(f"{annotations(folder)}: class {error} has no folder under {folder / 'train'}; unpack the whole "
                       "archive again") from None
    if not train or not test:
        raise BadInput(f"{folder}: holds {len(train)} training and {len(test)} validation images; unpack the whole "
                       "archive again")
    x = pixels([path for path, _ in train + test])
    y = np.array([k for _, k in train + test])
    return Dataset(x[:len(train)], y[:len(train)], x[len(train):], y[len(train):])


def labelled(path: Path):
    """Yield the image's name and its class from each line: NAME, CLASS and its box, between tabs."""
    for line in path.read_text().splitlines():
        if line.strip():
            name, _, rest = line.partition("\t")
            yield name, rest.partition("\t")[0].strip()


def pixels(paths: list[Path]) -> np.ndarray:
    """Read the images into one array, uint8 (n, h, w, 3): some are stored grey."""
    from PIL import Image
    x = None
    for i, path in enumerate(paths):
        try:
            with Image.open(path) as image:
                mine = np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError, ValueError) as error:      # PIL's: what a damaged file makes of each format
            raise BadInput(f"{path}: cannot read the image ({' '.join(str(error).split())}); unpack the archive "
                           "again") from None
        if x is None:
            x = np.empty((len(paths), *mine.shape), np.uint8)
        if mine.shape != x.shape[1:]:
            raise BadInput(f"{path}: is {mine.shape[0]} x {mine.shape[1]} pixels, the others are {x.shape[1]} x "
                           f"{x.shape[2]}; all must be alike")
        x[i] = mine
    return x
