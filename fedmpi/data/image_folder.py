"""Data sets of pictures in folders: a folder for each class."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from fedmpi.data.part_names import PART_WORDS
from fedmpi.data.pictures import decode_pictures, refuse_no_pixels
from fedmpi.data.samples import Dataset
from fedmpi.data.tables import require_file
from fedmpi.errors import BadInput

# Names of folders with a validation part.
VALIDATION_FOLDERS = ("val", "validation")


@dataclass(frozen=True)
class ImageFolder:
    """A folder of pictures, as torchvision's ImageFolder reads it (data.file): FOLDER/CLASS/*.png.

    If there is a folder `train`, the folders of classes are in it, and those of the test part in `test`; `val` or
    `validation` counts as training then. Without `test` one of these is the test part, and without any of them
    data.split divides the pictures of each client. With client_folders the folders of classes are in folders of
    clients: FOLDER/CLIENT/CLASS/*.png, for data.partition=natural. Pictures of other sizes or modes are brought to one
    if data.size and data.mode say so. Classes and clients are numbered in the order of their names, which the prepared
    federation keeps."""
    title = "image folder"
    example = {"file": "pictures"}
    # See columns.Columns.
    reader_format = 2
    size: Annotated[tuple[int, int] | None, "height and width to which all pictures are brought; default: all must be "
                    "alike"] = None
    mode: Annotated[Literal["RGB", "L"], "L: grey pictures of one channel"] = "RGB"
    client_folders: Annotated[bool, "the folders of classes are in folders of clients"] = False

    def __post_init__(self) -> None:
        refuse_no_pixels(self.size)

    def load(self, root: Path, file: str | None = None) -> Dataset:
        """Read all pictures; `root` is not used. Raises BadInput."""
        folder = require_file(file, "image_folder")
        try:
            found = self.list_parts(folder)
        except OSError as error:
            raise BadInput(f"{error.filename}: cannot read the data set: {error.strerror}; set data.file to a folder "
                           "of folders of pictures") from None
        if not found[0]:
            raise BadInput(f"data.file = {folder}: holds no pictures in folders of classes; they must be in "
                           f"{folder}/{'CLIENT/' * self.client_folders}CLASS, or in folders train and test there")
        classes, clients = (sorted({names[k] for part in found for _, *names in part}) for k in (1, 0))
        pictures = [(str(path), path) for part in found for path, *_ in part]
        x = decode_pictures(pictures, self.size, self.mode)
        numbers = [{name: i for i, name in enumerate(order)} for order in (clients, classes)]
        client, y = (np.array([numbers[k][names[k]] for part in found for _, *names in part], np.int64) for k in (0, 1))
        n, about = len(found[0]), {"class_names": classes}
        if not self.client_folders:
            return Dataset(x[:n], y[:n], x[n:], y[n:], about=about)
        return Dataset(x[:n], y[:n], x[n:], y[n:], client[:n], client[n:], {**about, "client_names": clients})

    def files(self, root: Path, file: str | None) -> list[Path]:
        """List the pictures that `load` reads."""
        folder = require_file(file, "image_folder")
        try:
            return [path for part in self.list_parts(folder) for path, *_ in part]
        except OSError:
            return [folder]

    def list_parts(self, folder: Path) -> list[list[tuple[Path, str, str]]]:
        """List the pictures of the training part and those of the test part, see `list_pictures`. Raises BadInput."""
        return [[picture for place in places for picture in self.list_pictures(place)]
                for places in self.find_parts(folder)]

    def find_parts(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """Return the folders of the training and of the test part. Raises BadInput if there are folders that seem to
        hold parts, and none is `train`, or if one of them would not be read."""
        if not (folder / "train").is_dir():
            if parts := [path for path in list_folders(folder) if self.holds_part(path)]:
                raise BadInput(f"{parts[0]}: holds folders and no pictures, as a part does, and there is no part "
                               "`train`; name the folders of the parts train and test (or val), or rename this one if "
                               f"it is a {'client' if self.client_folders else 'class'}")
            return [folder], []
        train, test = [folder / "train"], [folder / "test"] * (folder / "test").is_dir()
        validation: list[Path] = []
        for place in (folder / name for name in VALIDATION_FOLDERS):
            # A link to another part holds no further pictures.
            if place.is_dir() and not is_one_of_folders(place, [*train, *test, *validation]):
                validation.append(place)
        train, test = ([*train, *validation], test) if test else (train, validation[:1])
        self.refuse_forgotten_folders(folder, [*train, *test])
        return train, test

    def refuse_forgotten_folders(self, folder: Path, parts: list[Path]) -> None:
        """Raise BadInput if a folder beside those of the parts is named like a part and holds pictures, which would be
        left out without a word."""
        for place in list_folders(folder):
            word = PART_WORDS.get(place.name.lower())
            if word and not is_one_of_folders(place, parts) and (n := len(self.list_pictures(place))):
                same = [part for part in parts if PART_WORDS[part.name] == word]
                raise BadInput(f"{place}: is called like a part, and its {n} pictures would be left out, for the parts "
                               f"here are {' and '.join(part.name for part in parts)}; "
                               + (f"move them to {same[0]}" if same else f"rename it to {word}")
                               + f", or move it out of {folder}")

    def holds_part(self, folder: Path) -> bool:
        """Say whether the name of a folder is that of a part, and what it holds is not a class (of a client)."""
        from torchvision.datasets.folder import IMG_EXTENSIONS
        if folder.name.lower() not in PART_WORDS:
            return False
        classes = list_folders(folder) if self.client_folders else [folder]
        pictures = any(path.suffix.lower() in IMG_EXTENSIONS for each in classes for path in each.iterdir())
        return not pictures and any(map(list_folders, classes))

    def list_pictures(self, folder: Path) -> list[tuple[Path, str, str]]:
        """List the pictures of a part: path, client ("" without client_folders) and class, in this order of names."""
        from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset
        clients = list_folders(folder) if self.client_folders else [folder]
        found = []
        for client in clients:
            classes = [path.name for path in list_folders(client)]
            for path, k in make_dataset(client, {name: k for k, name in enumerate(classes)}, IMG_EXTENSIONS,
                                        allow_empty=True) if classes else []:
                found.append((Path(path), client.name if self.client_folders else "", classes[k]))
        return found


def is_one_of_folders(folder: Path, others: list[Path]) -> bool:
    """Say whether a folder is one of others, perhaps by a link or in other letters."""
    return any(map(folder.samefile, others))


def list_folders(folder: Path) -> list[Path]:
    """List the folders in a folder that are not hidden, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
