"""The federation: one HDF5 file with the samples sorted by client; a rank reads its slices.

Inside a client the samples lie in the order train, validation, test. Legend: n samples, N clients, C classes.

    x (n, ...)   y (n,)   counts (N, 3)   labels (N, 3, C): per part and class   groups (N,): if planted
"""
from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import re
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmpi import registry
from fedmpi.config import schema
from fedmpi.data import sources
from fedmpi.data.assignment import Dealt, assign
from fedmpi.data.samples import Dataset, thinned
from fedmpi.errors import BadInput
from fedmpi.storage.atomic import sync

FEDERATION_FORMAT = 2
SMALL_DATASETS = ("y", "counts", "labels", "groups")     # verified on opening; x slice by slice, as it is read
CHUNK_BYTES = (16 * 1024, 1024 * 1024)                # bytes: whole chunks are read, so about one client's share


class Samples(NamedTuple):
    """One client's samples; the validation and test parts may be empty."""
    x_train: np.ndarray
    y_train: np.ndarray
    x_val: np.ndarray
    y_val: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class Federation:
    """A prepared federation, to be read. Raises BadInput when the file is missing, damaged or incomplete.

    clients N, counts (N, 3), sizes (N,) of the training parts, label_counts (N, 3, C), groups (N,) or None and their
    group_names if they have any, shape and dtype of one sample, classes C, vocabulary (token ids from 0, or None),
    name of the data set, settings, fingerprint of the contents."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        with open_federation(self.path) as file:
            facts = verified(file, self.path)
            self.name, self.fingerprint = facts["settings"]["name"], facts["fingerprint"]
            self.settings, self.classes, self.vocabulary = facts["settings"], facts["classes"], facts["vocabulary"]
            self.group_names = facts["group_names"]
            self.shape, self.dtype = file["x"].shape[1:], file["x"].dtype
            self.counts, self.label_counts = file["counts"][:], file["labels"][:]
            self.groups = file["groups"][:] if "groups" in file else None
        self.clients, self.sizes = len(self.counts), self.counts[:, 0]
        self.edges = np.concatenate([[0], self.counts.sum(1).cumsum()])

    def client(self, i: int) -> Samples:
        """Read client i's slice of the file and no other."""
        if not 0 <= i < self.clients:
            raise IndexError(f"client {i} of {self.clients}")
        here = slice(self.edges[i], self.edges[i + 1])
        with open_federation(self.path) as file:
            x, y = file["x"][here], file["y"][here]
        cuts = self.counts[i].cumsum()[:2]
        pairs = zip(np.split(x, cuts), np.split(y, cuts), strict=True)
        return Samples(*(part for pair in pairs for part in pair))


def prepare(data: schema.Data, seed: int) -> Path:
    """Make the federation of these settings, unless it is there already and sound. Raises BadInput."""
    folder, root = folders(data)
    path, key, settings = federation_path(folder, data, seed, root)
    if not sound(path, key):
        with writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
        pool = thinned(sources.load_source(data.name, root, data.file), data.fraction, seed)
        path, key, settings = federation_path(folder, data, seed, root)      # a download has changed the source
        write_federation(path, key, settings, pool, assign(pool, data, seed))
    return path


def find_federation(data: schema.Data, seed: int) -> Federation | None:
    """Return the federation of these settings where it is prepared already and sound, else None."""
    folder, root = folders(data)
    try:
        return Federation(federation_path(folder, data, seed, root)[0])
    except BadInput:
        return None


def folders(data: schema.Data) -> tuple[Path, Path]:
    """Return where federations are kept and where data sets lie."""
    root = Path(data.root).expanduser()
    return Path(data.cache).expanduser() if data.cache else root / "federations", root


def federation_path(folder: Path, data: schema.Data, seed: int, root: Path):
    """Return the federation's path, key and settings."""
    settings = recipe(data, seed, root)
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    names = [re.sub(r"[^\w.]+", "_", name) for name in (data.name, settings["partition"]["name"])]
    return folder / f"{'-'.join(names)}-{data.clients}-{key[:12]}.h5", key, settings


def recipe(data: schema.Data, seed: int, root: Path) -> dict:
    """Collect everything on which the contents of a federation depend."""
    partition = {"name": schema.name_of(data.partition), **asdict(data.partition)}
    return {"format": FEDERATION_FORMAT, "name": data.name, "source": sources.source_key(data.name, root, data.file),
            "share": data.fraction, "clients": data.clients, "partition": partition, "split": list(data.split),
            "seed": seed, "code": [stamp(registry.find_class("datasets", data.name)), stamp(type(data.partition))]}


def stamp(cls: type) -> str:
    """Return what changes when a third party's class is edited; built-in classes change with FORMAT."""
    if cls.__module__.startswith("fedmpi."):
        return ""
    try:
        return hashlib.sha256(inspect.getsource(inspect.getmodule(cls)).encode()).hexdigest()
    except (OSError, TypeError):        # typed at a prompt
        return ""


def sound(path: Path, key: str) -> bool:
    try:
        with open_federation(path) as file:
            return verified(file, path)["key"] == key
    except BadInput:
        return False


def write_federation(path: Path, key: str, settings: dict, pool: Dataset, dealt: Dealt):
    """Write the file beside its place and rename it: other jobs see a whole federation or none."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    with writable(path.parent):
        try:
            fill(temporary, key, settings, pool, dealt)
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def fill(path: Path, key: str, settings: dict, pool: Dataset, dealt: Dealt):
    import h5py
    order, counts, groups, group_names = dealt
    y = take_rows(pool.y_train, pool.y_test, order)
    classes = int(max(pool.y_train.max(), pool.y_test.max(initial=0))) + 1
    small = {"y": y, "counts": counts, "labels": histogram(y, counts, classes)}
    if groups is not None:
        small["groups"] = groups
    reserve(path, sum(values.nbytes for values in small.values()) + len(order) * pool.x_train[:1].nbytes)
    # from 1.10 on, HDF5 keeps checksums of its own metadata
    with h5py.File(path, "w", libver=("v110", "v110"), locking=False) as file:
        for name, values in small.items():
            file[name] = values
        whole = write_samples(file, pool, order, counts)
        for name in sorted(small.keys() - {"labels"}):
            absorb(whole, small[name])
        facts = {"format": FEDERATION_FORMAT, "key": key, "classes": classes, "vocabulary": vocabulary_size(pool),
                 "group_names": group_names, "settings": settings, "fingerprint": whole.hexdigest()}
        # bytes: HDF5 keeps str attributes outside its checksums, and one flipped bit there can make it hang
        file.attrs["facts"] = np.bytes_(json.dumps(facts))
        file.attrs["check"] = np.bytes_(digest(file))
        file.attrs["complete"] = True


def vocabulary_size(pool: Dataset) -> int | None:
    """Return how many rows a table needs that is looked up by the tokens; None if the samples are no tokens."""
    if pool.x_train.dtype.kind != "i":
        return None
    return int(max(pool.x_train.max(), pool.x_test.max(initial=0))) + 1


def reserve(path: Path, size: int):
    """Raise OSError now when the disk or the quota has no room: HDF5 would crash the process later."""
    with open(path, "xb") as file:
        if hasattr(os, "posix_fallocate"):      # not on macOS
            os.posix_fallocate(file.fileno(), 0, size + size // 50 + 2 * CHUNK_BYTES[1])


def write_samples(file, pool: Dataset, order, counts):
    """Write x client by client, since a sorted copy of a large pool may not fit. Returns its running hash."""
    shape, dtype = pool.x_train.shape[1:], pool.x_train.dtype
    each = int(np.prod(shape)) * dtype.itemsize
    rows = int(np.clip(len(order) // len(counts) * each, *CHUNK_BYTES)) // each
    x = file.create_dataset("x", (len(order), *shape), dtype, fletcher32=True,
                            chunks=(int(np.clip(rows, 1, len(order))), *shape))
    whole = hashlib.sha256(f"{x.dtype.str}{x.shape}".encode())
    edges = np.concatenate([[0], counts.sum(1).cumsum()])
    for start, end in zip(edges[:-1], edges[1:], strict=True):
        x[start:end] = mine = take_rows(pool.x_train, pool.x_test, order[start:end])
        whole.update(mine)
    return whole


def take_rows(train, test, index):
    """Take rows of train and test as if they were one array."""
    late = index >= len(train)
    rows = np.empty((len(index), *train.shape[1:]), train.dtype)
    rows[~late], rows[late] = train[index[~late]], test[index[late] - len(train)]
    return rows


def histogram(y, counts, classes: int):
    """Count the samples per client, part and class (N, 3, C)."""
    part = np.repeat(np.arange(counts.size), counts.ravel())
    return np.bincount(part * classes + y, minlength=counts.size * classes).reshape(*counts.shape, classes)


def digest(file) -> str:
    """Hash all that is not x: the facts and the small data sets."""
    whole = hashlib.sha256(file.attrs["facts"])
    for name in SMALL_DATASETS:
        if name in file:
            absorb(whole, file[name][:])
    return whole.hexdigest()


def absorb(whole, values):
    whole.update(f"{values.dtype.str}{values.shape}".encode())
    whole.update(np.ascontiguousarray(values))


def verified(file, path: Path) -> dict:
    """Return the facts of an open file. Raises BadInput if it is incomplete, changed or of another format."""
    if not file.attrs.get("complete", False):
        raise damaged(path, "it was never completed")
    size = path.stat().st_size
    for name in ("x", *SMALL_DATASETS):
        data = file.get(name)
        if data is not None and (data.external or data.is_virtual or data.file != file or data.nbytes > size):
            raise damaged(path, f"{name} is not a plain data set of this file")      # it could fill the memory
    facts = json.loads(file.attrs["facts"])
    if facts["format"] != FEDERATION_FORMAT:
        raise damaged(path, f"it has format {facts['format']}, this version of fedmpi reads {FEDERATION_FORMAT}")
    if file.attrs["check"].decode() != digest(file):
        raise damaged(path, "its checksum does not match its contents")
    return facts


def damaged(path: Path, why) -> BadInput:
    why = str(why).partition(": time =")[0]      # HDF5 goes on with addresses
    return BadInput(f"{path}: the federation cannot be used: {' '.join(why.split())}; delete it, it is made "
                    "again from the source")


@contextlib.contextmanager
def open_federation(path: Path):
    """Open for reading, by any number of ranks at once: file locks fail on some parallel file systems."""
    import h5py
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (FileNotFoundError, PermissionError):
        raise BadInput(f"{path}: there is no federation here that can be read; "
                       "`fedmpi data CONFIG` makes it") from None
    except BadInput:
        raise
    except Exception as error:      # h5py raises errors of a dozen classes on damaged files
        raise damaged(path, error) from None


@contextlib.contextmanager
def writable(folder: Path):
    """Turn a failure to write into BadInput."""
    try:
        yield
    except (OSError, RuntimeError) as error:     # RuntimeError: HDF5, in closing
        raise BadInput(f"{folder}: cannot write the federation: {' '.join(str(error).split())}; set "
                       "data.cache to a folder that can be written and has room") from None
