"""Write and read the federation, one sealed HDF5 file with the samples sorted by client.

A rank reads and checks the samples of its own clients only. Inside a client the samples lie in the order train,
validation, test. Legend of shapes: n samples, N clients, C classes.

    x (n, ...)   y (n,)         the samples and classes, or float targets; those of one client are a piece
    labels (N, 3, C)            the number of samples per client, part and class (bin of targets); a client's row is a
                                piece
    counts (N, 3)               the number of samples per client and part
    groups (N,)                 the planted group of each client, if there are groups
    json/facts                  classes, vocabulary, names of the groups and settings; with `data.new_clients` the
                                numbers that the partition gave to the new clients, which are the last ones here
    json/names                  what Dataset.about holds, if the data set has names for its numbers; `client_names` has
                                an entry for each client here, the new ones last
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmpi import registry
from fedmpi.config import schema
from fedmpi.data import sources
from fedmpi.data.abandoned import read_machine_code, remove_abandoned
from fedmpi.data.assignment import Assignment
from fedmpi.data.first_format import FirstFormat, compute_fingerprint
from fedmpi.data.labels import TARGET_BINS, count_labels, count_outputs, list_labels
from fedmpi.data.loading import load_and_assign, make_replaced_error, were_files_replaced
from fedmpi.data.own_sources import list_inputs
from fedmpi.data.samples import Dataset, find_vocabulary_size, take_rows
from fedmpi.errors import BadInput, StorageError
from fedmpi.json_values import JsonObject
from fedmpi.own_code.fingerprint import hash_own_code
from fedmpi.own_code.without_file import hash_class_without_file
from fedmpi.paths import expand_user
from fedmpi.storage import seal
from fedmpi.storage.atomic import atomic
from fedmpi.storage.sealed import READ_BACK_BYTES, RowsSpec, SealedFile, write_sealed
from fedmpi.task import CLASSIFICATION, REGRESSION

FEDERATION_KIND = "federation"
# The format of the contents. With another format, the same settings make another federation.
FEDERATION_FORMAT = 2
# A client's samples are divided into these: the columns of Federation.counts.
SAMPLE_PARTS = ("train", "validation", "test")
SHARE_CACHE = "set data.cache to a folder that all nodes share"
# A data set whose files change while they are read is read at most so often.
LOADS = 2


class Samples(NamedTuple):
    """One client's samples; the validation and test parts may be empty."""
    x_train: np.ndarray
    y_train: np.ndarray
    x_val: np.ndarray
    y_val: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class Federation:
    """A prepared federation, to be read.

    When it is opened, everything but the samples and the label counts is verified.

    Args:
        path: the file.
        fingerprint: the fingerprint that the federation must have, if it is known.

    Attributes: `clients` N, `counts` (N, 3), `sizes` (N,) of the training parts, `groups` (N,) or None and their
    `group_names` if they have any, `shape` and `dtype` of one sample, `classes` C (1 for targets: the outputs of a
    network), `task`, `vocabulary` (token ids from 0, or None), `name` of the data set, `settings`, `fingerprint` of the
    contents. New clients count in none of them: they are the clients N, N + 1, ... that `client` reads, and
    `new_clients` holds the numbers that the partition gave them. `all_counts` and `all_groups` are of all clients.

    Raises BadInput if the file is missing, damaged, incomplete or another one."""

    def __init__(self, path: str | Path, fingerprint: str | None = None):
        self.path = Path(path)
        self.file = open_federation(self.path, fingerprint is not None)
        self.key, self.fingerprint = self.file.about["key"], self.file.about["fingerprint"]
        if fingerprint not in (None, self.fingerprint):
            raise BadInput(f"{path}: this rank sees another federation than rank 0 does; {SHARE_CACHE}")
        facts = self.file.json("facts")
        self.name, self.settings = facts["settings"]["name"], facts["settings"]
        self.classes, self.vocabulary, self.group_names = (
            facts["classes"], facts["vocabulary"], facts["group_names"])
        self.shape, self.dtype = self.file.places["x"].shape[1:], self.file.places["x"].dtype
        self.task = REGRESSION if self.file.places["y"].dtype.kind == "f" else CLASSIFICATION
        self.new_clients: list[int] = facts.get("new_clients", [])
        self.all_counts = self.file.read("counts")
        self.all_groups = self.file.read("groups") if "groups" in self.file.places else None
        self.edges = np.concatenate([[0], self.all_counts.sum(1).cumsum()])
        self.clients = len(self.all_counts) - len(self.new_clients)
        self.counts = self.all_counts[:self.clients]
        self.groups = None if self.all_groups is None else self.all_groups[:self.clients]
        self.sizes = self.counts[:, 0]

    @cached_property
    def names(self) -> JsonObject:
        """Return what the data set calls its numbers, see Dataset.about: `class_names`, `client_names`,
        `feature_names`, `tokenizer` and `padding_id`, as far as there are such."""
        return self.file.json("names") if "json/names" in self.file.places else {}

    @cached_property
    def label_counts(self) -> np.ndarray:
        """Return the samples per client, part and class, (N, 3, C); bins of equally many targets serve as classes."""
        return self.read_all_label_counts()[:self.clients]

    def read_all_label_counts(self) -> np.ndarray:
        """Read the label counts of all clients, the new ones included. Raises BadInput if a checksum is wrong."""
        return self.file.rows("labels", 0, len(self.all_counts))

    def client(self, i: int) -> Samples:
        """Read the samples of client i and nothing else. Raises BadInput unless their checksums are right."""
        if not 0 <= i < len(self.all_counts):
            raise IndexError(f"client {i} of {len(self.all_counts)}")
        x, y = (self.file.rows(name, i, i + 1, self.edges) for name in ("x", "y"))
        cuts = self.all_counts[i].cumsum()[:2]
        pairs = zip(np.split(x, cuts), np.split(y, cuts), strict=True)
        return Samples(*(part for pair in pairs for part in pair))

    def check(self) -> None:
        """Read everything. Raises BadInput unless all checksums and the fingerprint are right."""
        everybody = len(self.all_counts)
        pieces = (self.file.rows("x", i, i + 1, self.edges) for i in range(everybody))
        small = {"counts": self.all_counts, "y": self.file.rows("y", 0, everybody, self.edges)}
        if self.all_groups is not None:
            small["groups"] = self.all_groups
        with seal.refuse_damage(self.path, FEDERATION_KIND):
            if compute_fingerprint((self.edges[-1], *self.shape), self.dtype, pieces, small) != self.fingerprint:
                raise seal.Flaw("its fingerprint is not that of its contents")
            self.read_all_label_counts()


def open_federation(path: Path, rank_0_has_it: bool = False) -> SealedFile | FirstFormat:
    """Open a federation of this version or of fedmpi 0.1. Raises BadInput if the file is missing or damaged."""
    if not path.exists() or not os.access(path, os.R_OK):
        raise BadInput(f"{path}: there is no federation here that can be read" + (
            f", although rank 0 reads it; {SHARE_CACHE}" if rank_0_has_it else "; `fedmpi data CONFIG` makes it"))
    with seal.refuse_damage(path, FEDERATION_KIND):
        first = seal.is_plain_hdf5(path)
    return FirstFormat(path) if first else SealedFile(path, FEDERATION_KIND)


def prepare_federation(data: schema.Data, seed: int, check: bool = False) -> Path:
    """Make the federation of these settings, unless it is there already and sound. Raises BadInput.

    Args:
        data: the settings.
        seed: the seed of the run.
        check: whether to read and check all samples of a federation that is there. Otherwise each rank checks the
            samples that it reads."""
    folder, root = find_folders(data)
    path, key, settings = make_federation_path(folder, data, seed, root)
    remove_abandoned(folder)
    if not is_sound(path, key, check):
        with refuse_unwritable(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for _ in range(LOADS):
            pool, dealt = load_and_assign(data, seed, root)
            before = settings
            # The key is computed again, because a download has changed the source.
            path, key, settings = make_federation_path(folder, data, seed, root)
            if not were_files_replaced(before, settings):
                break
            # There may be no room for both.
            del pool, dealt
        else:
            raise make_replaced_error(data)
        write_federation(path, key, settings, pool, dealt)
    return path


def find_federation(data: schema.Data, seed: int) -> Federation | None:
    """Return the federation of these settings if it is prepared already and sound, else None."""
    folder, root = find_folders(data)
    path, key, _ = make_federation_path(folder, data, seed, root)
    try:
        found = Federation(path)
    except BadInput:
        return None
    return found if found.key == key else None


def find_folders(data: schema.Data) -> tuple[Path, Path]:
    """Return where federations are kept and where data sets lie."""
    root = expand_user(data.root, "data.root")
    return expand_user(data.cache, "data.cache") if data.cache else root / "federations", root


def make_federation_path(folder: Path, data: schema.Data, seed: int, root: Path) -> tuple[Path, str, JsonObject]:
    """Return the path of the federation, its key (a sha256 of its settings) and the settings."""
    settings = collect_recipe(data, seed, root)
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    names = [re.sub(r"[^\w.]+", "_", name) for name in (data.name, settings["partition"]["name"])]
    return folder / f"{'-'.join(names)}-{data.clients}-{key[:12]}.h5", key, settings


def collect_recipe(data: schema.Data, seed: int, root: Path) -> JsonObject:
    """Collect everything on which the contents of a federation depend."""
    partition = {"name": schema.find_name(data.partition), **asdict(data.partition)}
    inputs = list_inputs(data.partition)
    source = sources.make_source_key(data.name, root, data.file, data.source)
    cls = registry.find_class("datasets", data.name)
    code, version = [hash_class(cls), hash_class(type(data.partition))], getattr(cls, "reader_format", None)
    return {"format": FEDERATION_FORMAT, "name": data.name, "source": source, "share": data.fraction,
            "clients": data.clients, "partition": partition, "split": list(data.split), "seed": seed, "code": code,
            **({"new_clients": data.new_clients} if data.new_clients else {}),
            **({"task": data.task} if data.task == "regression" else {}),
            **({"settings": asdict(data.source)} if data.source else {}), **({"inputs": inputs} if inputs else {}),
            **({"reader_format": version} if version else {})}


def hash_class(cls: type) -> str:
    """Return a sha256 of the files that a third party's class consists of, which changes when one is edited.

    Of a class without a source file it counts what it does. Return "" for a built-in class, whose changes raise
    FEDERATION_FORMAT."""
    hashes = [value or hash_class_without_file(cls) for value in hash_own_code([cls]).values()]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest() if hashes else ""


def is_sound(path: Path, key: str, check: bool) -> bool:
    """Say whether a file is the federation of this key and is not damaged; with `check`, read its samples too."""
    try:
        found = Federation(path)
        if check:
            found.check()
    except BadInput:
        return False
    return found.key == key


def write_federation(path: Path, key: str, settings: JsonObject, pool: Dataset, dealt: Assignment) -> None:
    """Write the file under another name and rename it, so that other jobs see a whole federation or none.

    Raises BadInput if it cannot be written, or reads back differently."""
    part = path.with_name(f"{path.name}.{read_machine_code()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
    with refuse_unwritable(path.parent), atomic(path, part):
        write_samples(part, key, settings, pool, dealt)
        written = Federation(part)
        written.file.check_rows("x", written.edges, READ_BACK_BYTES)


def write_samples(path: Path, key: str, settings: JsonObject, pool: Dataset, dealt: Assignment) -> None:
    """Write a federation client by client, since a sorted copy of a large pool may not fit into memory."""
    order, counts, groups, group_names, new_clients, client_names = dealt
    names = {**(pool.about or {}), "client_names": client_names} if pool.about or client_names else {}
    y = take_rows(pool.y_train, pool.y_test, order)
    classes = count_outputs(pool, f"data.name = {settings['name']}")
    labels = count_labels(list_labels(pool, y), counts, classes if y.dtype.kind == "i" else TARGET_BINS)
    edges = np.concatenate([[0], counts.sum(1).cumsum()])
    facts = {"classes": classes, "vocabulary": find_vocabulary_size(pool), "group_names": group_names,
             "settings": settings, **({"new_clients": new_clients} if new_clients else {})}
    small = {"counts": counts} | ({} if groups is None else {"groups": groups})
    texts = {"json/facts": encode_json(facts)} | ({"json/names": encode_json(names)} if names else {})
    shape = (len(order), *pool.x_train.shape[1:])
    rows = {"x": RowsSpec(pool.x_train.dtype, shape, len(counts)), "y": RowsSpec(y.dtype, y.shape, len(counts)),
            "labels": RowsSpec(labels.dtype, labels.shape, len(counts))}
    about = {"key": key, "fingerprint": ""}

    with write_sealed(path, FEDERATION_KIND, about, {**small, **texts}, rows) as writer:
        def write_clients() -> Iterator[np.ndarray]:
            for start, end in zip(edges[:-1], edges[1:], strict=True):
                samples = take_rows(pool.x_train, pool.x_test, order[start:end])
                writer.append("x", samples, whole=True)
                writer.append("y", y[start:end], whole=True)
                yield samples
        about["fingerprint"] = compute_fingerprint(shape, pool.x_train.dtype, write_clients(), {**small, "y": y})
        writer.append("labels", labels)


def encode_json(value: JsonObject) -> np.ndarray:
    """Return a dictionary as the bytes of its JSON text, uint8."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


@contextlib.contextmanager
def refuse_unwritable(folder: Path) -> Iterator[None]:
    """Turn a failure to write below the folder into BadInput."""
    try:
        yield
    except (OSError, StorageError) as error:
        why = error.__cause__ if isinstance(error, StorageError) and error.__cause__ else error
        raise BadInput(f"{folder}: cannot write the federation: {' '.join(str(why).split())}; set "
                       "data.cache to a folder that can be written and has room") from None
