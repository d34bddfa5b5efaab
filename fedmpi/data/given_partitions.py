"""Partitions that are not drawn: the data set or a file says who holds which samples."""
from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np

from fedmpi.data.file_states import describe_file_state
from fedmpi.errors import BadInput
from fedmpi.paths import expand_user
from fedmpi.storage.seal import Flaw, open_regular

Contents = TypeVar("Contents")


@dataclass(frozen=True)
class Natural:
    """The data set says who holds what: the .npz also has client_train and client_test, a client for every sample.

    A CSV file, an image folder and others name the clients. With split = given, the training and test parts are taken
    as they are: data.split is not used, and there is no validation part. With split = drawn, each client's samples of
    both parts are divided anew, by data.split."""
    title = "natural"
    official = True
    split: Annotated[Literal["given", "drawn"], "given: the training and test part of the data; drawn: both together, "
                     "divided by data.split at each client"] = "given"

    @property
    def comes_split(self) -> bool:
        """Say whether the data say which samples are for training."""
        return self.split == "given"

    def assign(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> tuple[list[np.ndarray], None]:
        """Give every sample to the client that `labels` names for it. Raises BadInput if the numbers do not fit."""
        there = int(labels.max()) + 1
        if there != clients:
            raise BadInput(f"data.clients = {clients}: the data set numbers {there} clients; set it to {there}")
        counts = np.bincount(labels)
        if not counts.all():
            raise BadInput(f"data.partition = natural: client {np.argmin(counts)} has no samples; number the clients "
                           "from 0 without gaps")
        return np.split(np.argsort(labels, kind="stable"), counts.cumsum()[:-1]), None


@dataclass(frozen=True)
class Indices:
    """A file lists the samples of every client, by their numbers: from 0 through the training part, then the test part.

    A .json file holds a list of one list of numbers for each client, or a mapping of names to such lists. An .npz file
    holds one array of numbers for each client, in the order in which they were written. An .npy file holds the client
    of every sample of both parts, (n,), counted from 0; -1 stands for nobody. Samples that nobody holds are left out.
    Each client's samples are divided into train and test by data.split."""
    title = "indices"
    example = {"file": "clients.json"}
    counts_samples = True
    file: Annotated[str, "a .json, .npz or .npy file with the samples of every client"]

    def assign(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> tuple[list[np.ndarray], None]:
        """Return what the file says. Raises BadInput if it cannot be read or has another number of clients."""
        path = self.find_file()
        found = read_indices(path)
        parts = list(found.values())
        if len(parts) != clients:
            raise BadInput(f"data.clients = {clients}: {path} lists the samples of {len(parts)} clients; set it to "
                           f"{len(parts)}")
        names = find_names(path, found) or list(map(str, range(clients)))
        for name, part in zip(names, parts, strict=True):
            if part.ndim != 1 or part.dtype.kind not in "iu" or not part.size:
                raise BadInput(f"{path}: client {name} has {part.dtype} {part.shape} in place of the numbers of its "
                               "samples (n,), at least one; write whole numbers from 0, or leave the client out")
            if part.min() < 0 or part.max() >= len(labels):
                raise BadInput(f"{path}: client {name} has samples from {part.min()} to {part.max()}, and the data set "
                               f"has {len(labels)}, counted from 0, training and test part together; write the file "
                               "for this data set")
        refuse_twice(parts, names, path)
        return [part.astype(np.int64) for part in parts], None

    def refuse_other_length(self, train: int, test: int) -> None:
        """Raise BadInput if an .npy file has the clients of more or fewer samples than the data set has in its training
        and test part."""
        path = self.find_file()
        if path.suffix == ".npy" and (there := len(read_or_refuse(path, read_holders))) != train + test:
            raise BadInput(f"data.partition.file = {path}: holds the clients of {there} samples, and the data set has "
                           f"{train + test}: {train} in its training part and {test} in its test part behind them; "
                           "write the file for this data set (-1 for samples that nobody holds)")

    def find_file(self) -> Path:
        """Return the path of the file. Raises BadInput if there is no such user."""
        return expand_user(self.file, "data.partition.file")

    def name_clients(self) -> list[str] | None:
        """Return the names that the file gives to the clients, None if it only numbers them."""
        path = self.find_file()
        return find_names(path, read_indices(path))

    def list_inputs(self) -> list[str]:
        """Return the state of the file."""
        return [describe_file_state(self.find_file())]


def refuse_twice(parts: list[np.ndarray], names: list[str], path: Path) -> None:
    """Raise BadInput, with the names of the clients and of the file, if a number occurs twice."""
    held, client = np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(held, kind="stable")
    for place in np.flatnonzero(np.diff(held[order]) == 0)[:1]:
        first, second = (names[client[order[k]]] for k in (place, place + 1))
        whose = f"client {first}" if first == second else f"clients {first} and {second}"
        raise BadInput(f"{path}: sample {held[order[place]]} is given twice, to {whose}; remove it once")


def find_names(path: Path, found: dict[str, np.ndarray]) -> list[str] | None:
    """Return the names of clients in what `read_indices` found, None if they are only numbered."""
    names = list(found)
    return names if path.suffix == ".json" and names != list(map(str, range(len(names)))) else None


def read_indices(path: Path) -> dict[str, np.ndarray]:
    """Return the numbers of the samples of each client, by name. Raises BadInput if the file does not hold them."""
    if path.suffix not in READERS:
        raise BadInput(f"data.partition.file = {path}: should be a .json, .npz or .npy file")
    return read_or_refuse(path, READERS[path.suffix])


def read_or_refuse(path: Path, read: Callable[[Path], Contents]) -> Contents:
    """Return what a function reads from a file. Raises BadInput if it cannot."""
    try:
        with open_regular(path):
            return read(path)
    except OSError as error:
        raise BadInput(f"data.partition.file = {path}: cannot read it: {error.strerror or error}; set it to where the "
                       "file lies") from None
    except (Flaw, ValueError, TypeError, LookupError, EOFError, RecursionError, MemoryError, SyntaxError,
            zipfile.BadZipFile) as error:
        raise BadInput(f"data.partition.file = {path}: damaged, or not the samples of every client "
                       f"({' '.join(str(error).split())}); `fedmpi partitions indices` says what it should "
                       "hold") from None


def read_json_indices(path: Path) -> dict[str, np.ndarray]:
    """Read a list of lists, or a mapping of names to lists. Raises ValueError for anything else."""
    found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=map_once)
    if isinstance(found, list):
        found = {str(i): part for i, part in enumerate(found)}
    if not isinstance(found, dict) or not all(isinstance(part, list) for part in found.values()):
        raise ValueError("it is neither a list of lists nor a mapping of names to lists")
    # An empty list would be an array of floats.
    return {name: np.array(part) if part else np.empty(0, np.int64) for name, part in found.items()}


def map_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a mapping of names. Raises ValueError if it has a name twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it names {next(name for name in names if names.count(name) > 1)!r} twice")
    return made


def read_npz_indices(path: Path) -> dict[str, np.ndarray]:
    """Read one array for each client."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def read_holders(path: Path) -> np.ndarray:
    """Read the client of every sample (n,). Raises ValueError if these are not numbers from -1."""
    client = np.load(path, allow_pickle=False)
    if client.ndim != 1 or client.dtype.kind not in "iu" or not len(client) or client.min() < -1:
        raise ValueError(f"it holds {client.dtype} {client.shape}, not the client of every sample from 0, or -1")
    if (last := int(client.max())) >= len(client):
        raise ValueError(f"it numbers clients up to {last} and has {len(client)} samples; number the clients from 0 "
                         "without gaps")
    return client


def read_npy_indices(path: Path) -> dict[str, np.ndarray]:
    """Read the samples of every client. Raises ValueError like `read_holders`."""
    client = read_holders(path)
    # Nobody, -1, comes first.
    counts = np.bincount(client.astype(np.int64) + 1)
    parts = np.split(np.argsort(client, kind="stable"), counts.cumsum()[:-1])[1:]
    return {str(i): part for i, part in enumerate(parts)}


READERS = {".json": read_json_indices, ".npz": read_npz_indices, ".npy": read_npy_indices}
