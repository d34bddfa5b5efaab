"""Checkpoints: one HDF5 file each, in a layout without ranks; no damaged byte of it is ever taken for state.

    (4096 bytes)   the seal: see fedmpi.storage.seal; written last, it marks the file as complete
    shared/NAME    the server's state
    ids            the clients that have a row of their own
    mine/NAME      these rows, (r, *shape)
    digest/NAME    (r, 16): a checksum per row, so that every rank can check the rows that it takes
    json/NAME      config, metrics, books, ... as UTF-8 bytes
"""
from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import h5py
import numpy as np

from fedmpi import __version__
from fedmpi.errors import BadInput, StorageError
from fedmpi.storage import seal
from fedmpi.storage.atomic import Sink, atomic, reason, sync, writing
from fedmpi.storage.seal import DIGEST, HASH_BLOCK_BYTES, Damaged

JSON = ("round", "config", "federation", "accuracy", "metrics", "books")
# What may change between a checkpoint and its continuation, because it does not change results.
FREE = ("rounds", "stop", "evaluate.every", "evaluate.after", "evaluate.embeddings", "edge", "checkpoint",
        "server.hosts_clients", "faults.bad_update", "placement", "threads", "device", "graphs", "comm", "state",
        "data.root", "data.cache")
ROUNDING_FIELDS = ("threads", "device", "graphs")      # of these, those that may change the last bits
ABSENT = object()
checkpoint_json = partial(json.dumps, default=np.generic.item)


@dataclass
class Snapshot:
    """The state of a run between two rounds, except the clients' own rows."""
    round: int                       # rounds finished
    shared: dict[str, np.ndarray]    # the server's state by field name
    ids: np.ndarray                  # (r,) ascending: clients whose row is not their first any more
    config: dict                     # resolved configuration, plain JSON values
    federation: str                  # fingerprint of the federation file
    accuracy: float                  # of this round, nan if not evaluated: the best checkpoint is kept
    metrics: list[dict]              # the lines of metrics.jsonl so far
    books: dict                      # other small JSON state of the run


def write_checkpoint(folder: Path, snapshot: Snapshot, pieces: Iterable[dict[str, np.ndarray]]) -> Path:
    """Write a checkpoint, verify it on the disk, and only then give it its name.

    `pieces` are consecutive blocks of rows in the order of `snapshot.ids`: Mine field name -> (k, *shape).
    Raises StorageError when the disk is full, read-only or faulty; earlier checkpoints stay."""
    path = Path(folder) / f"round-{snapshot.round:06d}.h5"
    with atomic(path) as part:
        with Sink(part) as sink:
            with h5py.File(sink, "w", userblock_size=seal.SEAL) as file:
                write_state(file, snapshot)
                write_rows(file, len(snapshot.ids), pieces)
                regions = row_regions(file)
            sink.check()
        about = {"fedmpi": __version__, "round": int(snapshot.round), "accuracy": float(snapshot.accuracy)}
        seal.put_seal(part, about, regions)
        sync(part)
        try:
            verify_checkpoint(part)
        except Damaged as error:
            raise StorageError(f"{path}: the disk does not give back what was written: {error}; check the disk, or "
                               "give the run another --out") from error
    return path


def write_state(file: h5py.File, snapshot: Snapshot):
    """Write everything but the clients' rows."""
    ids = np.asarray(snapshot.ids, np.int64)
    if np.any(np.diff(ids) <= 0):
        raise ValueError("the ids of a checkpoint must ascend")
    file["ids"] = ids
    shared = file.create_group("shared", track_order=True)
    for name, value in snapshot.shared.items():
        shared[name] = numeric(name, value)
    for name in JSON:
        file[f"json/{name}"] = np.frombuffer(checkpoint_json(getattr(snapshot, name)).encode(), np.uint8)
    file.attrs.update(format=seal.SEAL_FORMAT, round=snapshot.round, **libraries())


def libraries() -> dict[str, str]:
    """Name what a checkpoint was made with, for people who look into the file."""
    found = {"fedmpi": __version__, "python": platform.python_version(), "numpy": np.__version__,
             "h5py": h5py.__version__, "hdf5": h5py.version.hdf5_version}
    with suppress(PackageNotFoundError):
        found["torch"] = version("torch")
    return found


def write_rows(file: h5py.File, count: int, pieces: Iterable[dict[str, np.ndarray]]):
    """Stream the rows of `count` clients and their checksums."""
    mine, start = file.create_group("mine", track_order=True), 0
    for piece in pieces:
        for name, rows in piece.items() if start == 0 else ():
            mine.require_dataset(name, (count, *rows.shape[1:]), numeric(name, rows).dtype, exact=True)
            file.require_dataset(f"digest/{name}", (count, DIGEST), np.uint8)
        lengths = {len(rows) for rows in piece.values()}
        if set(piece) != set(mine) or len(lengths) > 1:
            raise ValueError(f"the pieces of a checkpoint differ: {sorted(piece)} after {sorted(mine)}, "
                             f"{sorted(lengths)} rows")
        stop = start + max(lengths, default=0)
        for name, rows in piece.items():
            mine[name][start:stop] = rows
            file[f"digest/{name}"][start:stop] = row_digests(name, start, rows)
        start = stop
    if len(mine) and start != count:
        raise ValueError(f"the pieces of a checkpoint hold {start} rows for {count} clients")


def numeric(name: str, value) -> np.ndarray:
    value = np.asarray(value)
    if value.dtype.kind not in "fiub":
        raise TypeError(f"{name}: a checkpoint holds numbers and booleans, not {value.dtype}")
    return value


def row_digests(name: str, start: int, rows: np.ndarray) -> np.ndarray:
    """Return a checksum per row, (k, 16); it covers what the row is, too: no other row passes for it."""
    out = np.empty((len(rows), DIGEST), np.uint8)
    for i in range(len(rows)):
        row = rows[i:i + 1]         # not rows[i]: a numpy scalar has lost the odd bits of a damaged boolean
        label = f"{name} {start + i} {row.dtype.str} {row.shape}"
        digest = hashlib.blake2b(label.encode() + row.tobytes(), digest_size=DIGEST)
        out[i] = np.frombuffer(digest.digest(), np.uint8)
    return out


def row_regions(file: h5py.File) -> list[list[int]]:
    """Return [offset, bytes] of the clients' rows within the file, ascending."""
    return sorted([data.id.get_offset(), data.nbytes] for data in file["mine"].values() if data.nbytes)


@contextmanager
def open_checkpoint(path) -> Iterator[h5py.File]:
    """Open a checkpoint of which everything but the clients' rows is verified. Raises Damaged.

    On bad files h5py raises errors of a dozen classes: all become Damaged, also while the file is open."""
    try:
        seal.check_seal(path)
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except Damaged as error:
        raise refusal(path, str(error)) from None
    except Exception as error:
        raise refusal(path, reason(error)) from error


def refusal(path, why: str) -> Damaged:
    return Damaged(f"{path} cannot be used as a checkpoint: {why}; resume from another one")


def load_dataset(file: h5py.File, name: str, rows: slice = slice(None)) -> np.ndarray:
    """Read a data set (or some rows of it) of plain numbers that lies in this very file."""
    data = file[name]
    elsewhere = data.file.filename != file.filename or data.external or data.is_virtual
    if elsewhere or data.chunks or data.nbytes > os.path.getsize(file.filename):
        raise Damaged(f"{name} is not a plain data set")
    return numeric(name, data[rows] if data.shape else data[()])


def load_rows(file: h5py.File, name: str, start: int, stop: int) -> np.ndarray:
    rows = load_dataset(file, f"mine/{name}", slice(start, stop))
    wrong = np.any(row_digests(name, start, rows) != load_dataset(file, f"digest/{name}", slice(start, stop)), axis=1)
    if wrong.any():
        raise Damaged(f"the checksum of row {start + wrong.argmax()} of {name} is wrong")
    return rows


def check_rows(file: h5py.File):
    """Raise Damaged unless the rows of all clients agree with their checksums."""
    for name, data in file["mine"].items():
        step = max(1, HASH_BLOCK_BYTES * len(data) // max(1, data.nbytes))
        for start in range(0, len(data), step):
            load_rows(file, name, start, start + step)


def verify_checkpoint(path):
    """Raise Damaged unless every byte of a checkpoint that matters is as it was written."""
    with open_checkpoint(path) as file:
        check_rows(file)


def read_checkpoint(path) -> Snapshot:
    """Return what a checkpoint holds, once all of it (the clients' rows too) is verified. Raises Damaged."""
    with open_checkpoint(path) as file:
        check_rows(file)
        values = {name: json.loads(load_dataset(file, f"json/{name}").tobytes()) for name in JSON}
        shared = {name: load_dataset(file, f"shared/{name}") for name in file["shared"]}
        return Snapshot(shared=shared, ids=load_dataset(file, "ids"), **values)


def read_rows(path, start: int, stop: int) -> dict[str, np.ndarray]:
    """Return rows [start, stop) of each Mine field, verified. Raises Damaged."""
    with open_checkpoint(path) as file:
        return {name: load_rows(file, name, start, stop) for name in file["mine"]}


def list_checkpoints(folder) -> list[Path]:
    """List the checkpoints of a folder, newest first."""
    return sorted(Path(folder).glob("round-*.h5"), key=lambda path: (len(path.name), path.name), reverse=True)


def newest(folder) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Return the newest checkpoint that verifies, or None, and those refused on the way with the reason."""
    refused = []
    for path in list_checkpoints(folder):
        try:
            verify_checkpoint(path)
            return path, refused
        except Damaged as error:
            refused.append((path, str(error)))
    return None, refused


def prune(folder, keep: int):
    """Delete all checkpoints but the last `keep` and the best, and what killed runs left half-written.

    Files without a valid seal neither count nor go: they may be of a newer fedmpi. Nothing goes unless
    one stays that verifies."""
    sealed = {}
    for path in list_checkpoints(folder):
        with suppress(Damaged, OSError, ValueError, KeyError):
            sealed[path] = seal.read_seal(path)["accuracy"]
    stay = [*sealed][:keep]
    judged = [path for path in sealed if not math.isnan(sealed[path])]
    stay += [max(reversed(judged), key=sealed.get)] if judged else []      # the first of equals
    go = [path for path in sealed if path not in stay] if any(map(verifies, stay)) else []
    for path in [*go, *Path(folder).glob("round-*.part")]:
        with writing(path):
            path.unlink()


def verifies(path) -> bool:
    try:
        verify_checkpoint(path)
    except Damaged:
        return False
    return True


def check_same(snapshot: Snapshot, config: dict, federation: str):
    """Raise BadInput when a checkpoint cannot continue as this run: other settings or another federation."""
    then, now = (flatten_section(json.loads(checkpoint_json(c))) for c in (snapshot.config, config))
    problems = [f"{key} is {then.get(key, '(not set)')} in the checkpoint and {now.get(key, '(not set)')} now"
                for key in {**then, **now}
                if not is_free(key) and then.get(key, ABSENT) != now.get(key, ABSENT)]
    if snapshot.federation != federation:
        problems.append(f"the federation is {snapshot.federation} in the checkpoint and {federation} now: "
                        "its clients hold other samples")
    if problems:
        raise BadInput(f"the checkpoint of round {snapshot.round} belongs to another run:\n  "
                       + "\n  ".join(problems) + "\nset these back, or start a new run with another --out")


def in_last_bits(snapshot: Snapshot, config: dict) -> list[str]:
    """Return a warning for each setting that differs, and with which sums inside a training step may be rounded
    otherwise."""
    then, now = flatten_section(snapshot.config), flatten_section(config)
    return [f"{key} is {then.get(key)} in the checkpoint and {now[key]} now: the last bits may differ, and with them "
            "the digest" for key in ROUNDING_FIELDS if then.get(key) != now[key]]


def on_another_gpu(snapshot: Snapshot, gpus: list[str]) -> list[str]:
    """Return a warning if a checkpoint was written by other GPUs, drivers or libraries than those at work now."""
    then = snapshot.books.get("gpus", gpus)
    return [] if then == gpus else [
        f"the checkpoint was written on {'; '.join(then) or 'CPUs'}, and this run is on {'; '.join(gpus) or 'CPUs'}: "
        "the last bits may differ, and with them the digest"]


def is_free(key: str) -> bool:
    return any(key == name or key.startswith(name + ".") for name in FREE)


def flatten_section(section: dict, where: str = "") -> dict:
    """Return nested settings by dotted path."""
    out = {}
    for key, value in section.items():
        out |= flatten_section(value, f"{where}{key}.") if isinstance(value, dict) and value else {where + key: value}
    return out
