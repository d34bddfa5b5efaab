"""The JSON files of LEAF (Caldas et al., 2018): FEMNIST, Shakespeare and data sets of features.

`preprocess.sh` of LEAF writes folders `train` and `test`, or `all_data` alone, with several files each. A file lists
`users`, and for each of them `user_data` with the samples `x` and the labels `y`."""
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedmpi.data.samples import Dataset
from fedmpi.errors import BadInput
from fedmpi.memory_check import refuse_larger
from fedmpi.paths import expand_user

# LEAF's alphabet of Shakespeare; the place of a character is its label.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
# Characters of a sample of Shakespeare.
CONTEXT = 80
# Folders with all samples, in the order in which LEAF itself looks for them.
UNDIVIDED = ("rem_user_data", "sampled_data", "all_data")
# Classes of FEMNIST: digits, capital letters, small letters.
CHARACTERS = [*"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"]


class Leaf:
    """A data set of features in LEAF's JSON files, such as its synthetic one (data.file: the folder `data`).

    The clients are LEAF's users, in the order of the files, for data.partition=natural; `data.clients` must be their
    number. The prepared federation keeps their names. Users without samples are left out. If LEAF divided the users
    between training and test (`-t user`), set data.partition.split=drawn, which divides the samples of every user."""
    title = "LEAF"
    example = {"file": "leaf/data/synthetic/data", "partition": "natural"}
    # the folder below ROOT, if data.file does not name one
    name = "leaf"
    # See columns.Columns.
    reader_format = 2
    class_names: list[str] | None = None

    def load(self, root: Path, file: str | None = None) -> Dataset:
        """Read all files. Raises BadInput if they are missing or damaged."""
        places = self.find_parts(root, file)
        if not places["train"]:
            raise BadInput(f"data.file = {self.find_folder(root, file)}: holds no .json files in a folder train or "
                           "all_data; give the folder `data` of the data set that LEAF's preprocess.sh has filled")
        users: dict[str, int] = {}
        train, test = (self.read_part(paths, users) for paths in places.values())
        x_train, y_train, client_train = train
        # An empty part has the shape of the other.
        x_test, y_test, client_test = test if len(test[1]) else (x_train[:0], y_train[:0], client_train[:0])
        about = {"client_names": list(users)} | ({"class_names": self.class_names} if self.class_names else {})
        return Dataset(x_train, y_train, x_test, y_test, client_train, client_test, about)

    def files(self, root: Path, file: str | None) -> list[Path]:
        """List the files that `load` reads."""
        return [path for paths in self.find_parts(root, file).values() for path in paths]

    def find_folder(self, root: Path, file: str | None) -> Path:
        """Return the folder of the data set."""
        return expand_user(file, "data.file") if file else root / self.name

    def find_parts(self, root: Path, file: str | None) -> dict[str, list[Path]]:
        """Return the files of the training and the test part; the latter is empty if LEAF made none."""
        folder = self.find_folder(root, file)
        for names in (("train", "test"), *((name, "") for name in UNDIVIDED)):
            found = [sorted((folder / name).glob("*.json")) if name else [] for name in names]
            if found[0]:
                return dict(zip(("train", "test"), found, strict=True))
        return {"train": [], "test": []}

    def read_part(self, paths: list[Path], users: dict[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the samples, labels and clients of some files. A user who is new gets the next number.

        Raises BadInput for files that are not files of LEAF's."""
        samples, labels, clients, held = [np.empty((0, 0))], [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
        for path in paths:
            for user, x, y in read_users(path):
                where = f"{path}: user {user}"
                if len(x) != len(y):
                    raise BadInput(f"{where} has {len(x)} samples and {len(y)} labels; write the file again by LEAF")
                if not len(x):
                    continue
                samples.append(self.convert_samples(x, where))
                labels.append(self.convert_labels(y, where))
                clients.append(np.full(len(y), users.setdefault(user, len(users)), np.int64))
                if samples[-1].shape[1:] != samples[1].shape[1:]:
                    raise BadInput(f"{where} has samples of {samples[-1].shape[1:]} numbers, those before it "
                                   f"{samples[1].shape[1:]}; all must be alike")
                held += samples[-1].nbytes
                refuse_larger(2 * held, f"{where}: the samples up to here, joined,", "sample fewer by LEAF's --sf")
        return (np.concatenate(samples[1:] or samples), np.concatenate(labels), np.concatenate(clients))

    def convert_samples(self, x: list[object], where: str) -> np.ndarray:
        """Return the samples of a user as float32 (n, d). Raises BadInput if they are not lists of numbers."""
        try:
            made = np.array(x, np.float32)
        except (ValueError, TypeError):
            made = np.empty(0)
        if made.ndim != 2:
            raise BadInput(f"{where}: x must hold a list of as many numbers for each sample; for texts there is "
                           "data.name = shakespeare")
        return made

    def convert_labels(self, y: list[object], where: str) -> np.ndarray:
        """Return the labels of a user (n,). Raises BadInput if they are not whole numbers."""
        # A list among the labels would make an array of lists, or none at all.
        made = np.array(y, object if any(isinstance(value, list) for value in y) else None)
        if made.ndim != 1 or made.dtype.kind not in "iuf" or (made != np.rint(made)).any() or made.min() < 0:
            raise BadInput(f"{where}: y must hold whole numbers from 0")
        return made.astype(np.int64)


class Femnist(Leaf):
    """Handwritten digits and letters by writer, 28 x 28 x 1, 62 classes (LEAF's FEMNIST).

    It reads LEAF's JSON files from data.file, or from ROOT/femnist: `./preprocess.sh -s niid --sf 0.05 -k 0 -t sample`
    in LEAF's data/femnist writes them to data/femnist/data. The pixels, which LEAF stores as n/255, become bytes again.
    For data.partition=natural the clients are the writers, as `fedmpi datasets leaf` says."""
    title, name = "FEMNIST", "femnist"
    example = {"file": "leaf/data/femnist/data", "partition": "natural"}
    class_names = CHARACTERS

    def convert_samples(self, x: list[object], where: str) -> np.ndarray:
        """Return the pictures of a writer as uint8 (n, 28, 28). Raises BadInput."""
        pixels = super().convert_samples(x, where) * 255
        if pixels.shape[1] != 784 or not (-.01 <= pixels.min() <= pixels.max() <= 255.01):
            raise BadInput(f"{where}: x must hold pictures of 784 numbers from 0 to 1; for other numbers there is "
                           "data.name = leaf")
        return np.rint(pixels).clip(0, 255).astype(np.uint8).reshape(len(pixels), 28, 28)


class Shakespeare(Leaf):
    """The next character of a play, by role, from the 80 before it: 80 classes (LEAF's Shakespeare).

    It reads LEAF's JSON files from data.file, or from ROOT/shakespeare: `./preprocess.sh -s niid --sf 0.2 -k 0 -t
    sample` in LEAF's data/shakespeare writes them to data/shakespeare/data. A class is the place of the character in
    LEAF's alphabet, from 0; a token id is this place plus 1, and 0 stands for characters that are not in it. A network
    needs a table of 81 rows: model.vocabulary=81. For data.partition=natural the clients are the roles, as
    `fedmpi datasets leaf` says."""
    title, name = "Shakespeare", "shakespeare"
    example = {"file": "leaf/data/shakespeare/data", "partition": "natural"}
    class_names = [*ALPHABET]
    places = {letter: place for place, letter in enumerate(ALPHABET)}

    def convert_samples(self, x: list[object], where: str) -> np.ndarray:
        """Return texts as token ids, int32 (n, 80). Raises BadInput if they have another length."""
        for row, text in enumerate(x):
            if not isinstance(text, str) or len(text) != CONTEXT:
                raise BadInput(f"{where}: sample {row} is not a text of {CONTEXT} characters, as LEAF writes them")
        return np.array([[self.places.get(letter, -1) + 1 for letter in str(text)] for text in x], np.int32)

    def convert_labels(self, y: list[object], where: str) -> np.ndarray:
        """Return the next characters as classes (n,). Raises BadInput if one is not in LEAF's alphabet."""
        for row, letter in enumerate(y):
            if not isinstance(letter, str) or letter not in self.places:
                raise BadInput(f"{where}: label {row} is {str(letter)[:20]!r}, no character of LEAF's alphabet")
        return np.array([self.places[str(letter)] for letter in y], np.int64)


def read_users(path: Path) -> Iterator[tuple[str, list[object], list[object]]]:
    """Yield name, samples and labels of every user of a file. Raises BadInput if it is not a file of LEAF's."""
    refuse_larger(path.stat().st_size * 4, f"{path}: its contents", "let LEAF write fewer users into a file")
    try:
        found = json.loads(path.read_bytes())
        users = [(str(user), found["user_data"][user]["x"], found["user_data"][user]["y"]) for user in found["users"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise BadInput(f"{path}: damaged, or no file of LEAF's ({why}); it must hold users and user_data") from None
    seen: set[str] = set()
    for user, x, y in users:
        if user in seen:
            raise BadInput(f"{path}: lists the user {user} twice, whose samples would count twice; remove one")
        seen.add(user)
        if not isinstance(x, list) or not isinstance(y, list):
            raise BadInput(f"{path}: user {user}: x and y must be lists; write the file again by LEAF")
        yield user, x, y
