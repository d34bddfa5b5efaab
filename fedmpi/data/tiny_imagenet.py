"""Read photographs from the folders of Tiny-ImageNet: train/CLASS/images/*, val/images/*, val/val_annotations.txt."""
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.data.samples import Dataset
from fedmpi.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator


def list_files(folder: Path) -> list[Path]:
    """List the paths whose sizes and times stand for the contents of an unpacked folder: a new file changes the time of
    the folder that it lies in, and of none above it."""
    of_classes = sorted((folder / "train").glob("*/images"))
    return [folder / "train", *of_classes, folder / "val" / "images", find_annotation_file(folder)]


def find_annotation_file(folder: Path) -> Path:
    """Return the path of the file that gives the class of every validation image."""
    return folder / "val" / "val_annotations.txt"


def read_folders(folder: Path) -> Dataset:
    """Read all images, and number the classes in the order of their folders' names.

    The validation images become the test part. Raises BadInput if files are missing or damaged."""
    try:
        classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
        number = {name: k for k, name in enumerate(classes)}
        train = [(path, k) for name, k in number.items()
                 for path in sorted((folder / "train" / name / "images").iterdir())]
        test = [(folder / "val" / "images" / name, number[label]) for name,
                label in list_labelled_images(find_annotation_file(folder))]
    except OSError as error:
        raise BadInput(f"{error.filename}: cannot read Tiny-ImageNet: {error.strerror}; unpack the whole archive "
                       f"again as {folder}") from None
    except KeyError as error:
        raise BadInput(f"{find_annotation_file(folder)}: class {error} has no folder under {folder / 'train'}; unpack "
                       "the whole archive again") from None
    # Bytes that are not text.
    except ValueError as error:
        raise BadInput(f"{find_annotation_file(folder)}: cannot be read ({error}); unpack the whole archive again"
                       ) from None
    if not train or not test:
        raise BadInput(f"{folder}: holds {len(train)} training and {len(test)} validation images; unpack the whole "
                       "archive again")
    x = read_pixels([path for path, _ in train + test])
    y = np.array([k for _, k in train + test])
    return Dataset(x[:len(train)], y[:len(train)], x[len(train):], y[len(train):])


def list_labelled_images(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the class of each image. A line holds the name, the class and a box, separated by tabs."""
    for line in path.read_text().splitlines():
        if line.strip():
            name, _, rest = line.partition("\t")
            yield name, rest.partition("\t")[0].strip()


def read_pixels(paths: list[Path]) -> np.ndarray:
    """Read the images into one uint8 array (n, h, w, 3); grey images are converted to RGB.

    Raises BadInput if an image cannot be read or differs in size from the first."""
    from PIL import Image
    x = None
    for i, path in enumerate(paths):
        try:
            with Image.open(path) as image:
                mine = np.asarray(image.convert("RGB"))
        # PIL raises any of these for a damaged file; which one depends on the format.
        except (OSError, SyntaxError, ValueError) as error:
            raise BadInput(f"{path}: cannot read the image ({' '.join(str(error).split())}); unpack the archive "
                           "again") from None
        if x is None:
            x = np.empty((len(paths), *mine.shape), np.uint8)
        if mine.shape != x.shape[1:]:
            raise BadInput(f"{path}: is {mine.shape[0]} x {mine.shape[1]} pixels, the others are {x.shape[1]} x "
                           f"{x.shape[2]}; all must be alike")
        x[i] = mine
    return x
