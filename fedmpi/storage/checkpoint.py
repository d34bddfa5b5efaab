"""Checkpoints: one sealed file each, in a layout without ranks.

    shared/NAME    the server's state
    ids            the clients that have a row of their own
    mine/NAME      these rows, (r, *shape)
    json/NAME      config, metrics, books, ... as UTF-8 bytes

A checkpoint has its name only after it was flushed to the disk and read back: its seal, everything but the clients'
rows, and of these as many as READ_BACK_BYTES hold, spread evenly. All rows were hashed when they were written. They are
all read again when a run continues, before its first round; `--resume auto` then takes the one before a damaged one.
"""
from __future__ import annotations

import itertools
import json
import math
import platform
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import h5py
import numpy as np

from fedmpi import __version__
from fedmpi.config.old_names import rename_settings
from fedmpi.errors import StorageError
from fedmpi.json_values import JsonObject
from fedmpi.storage.atomic import atomic, report_failed_writes
from fedmpi.storage.listing import PART_NAMES, list_checkpoints, match_files, name_checkpoint
from fedmpi.storage.seal import DamagedFile, open_regular, read_seal, refuse_damage, report_faulty_disk
from fedmpi.storage.sealed import READ_BACK_BYTES, RowsSpec, SealedFile, require_numeric, write_sealed

CHECKPOINT_KIND = "checkpoint"
# What a file holds as JSON, by its name there, with the field of Snapshot that it is.
JSON_ENTRIES = {"round": "round", "config": "config", "federation": "federation", "accuracy": "score",
                "metrics": "metrics", "books": "extra"}
checkpoint_json = partial(json.dumps, default=np.generic.item)


@dataclass
class Snapshot:
    """The state of a run between two rounds, except the clients' own rows."""
    # the rounds that are finished
    round: int
    # the server's state by field name
    shared: dict[str, np.ndarray]
    # (r,) ascending: clients whose row is not their first any more
    ids: np.ndarray
    # resolved configuration, plain JSON values
    config: JsonObject
    # fingerprint of the federation file
    federation: str
    # score of this round, see RunState.score (nan if it was not evaluated); the best checkpoint is kept
    score: float
    # the lines of metrics.jsonl so far
    metrics: list[JsonObject]
    # the other small state of the run, as JSON values
    extra: JsonObject
    # the version of fedmpi that wrote it
    version: str = __version__


def write_checkpoint(folder: Path, snapshot: Snapshot, pieces: Iterable[dict[str, np.ndarray]]) -> Path:
    """Write a checkpoint, verify it on the disk, and only then give it its name.

    Args:
        folder: where it goes.
        snapshot: the state of the server.
        pieces: consecutive blocks of rows in the order of `snapshot.ids`: Mine field name -> (k, *shape).

    Raises StorageError if the disk is full, read-only or faulty; earlier checkpoints stay."""
    path = Path(folder) / name_checkpoint(snapshot.round)
    blocks = iter(pieces)
    first = next(blocks, {})
    count = len(snapshot.ids)
    rows = {f"mine/{name}": RowsSpec(require_numeric(name, values).dtype, (count, *values.shape[1:]), count)
            for name, values in first.items()}
    about = {"round": int(snapshot.round), "accuracy": float(snapshot.score), "libraries": list_libraries()}
    with atomic(path) as part:
        with write_sealed(part, CHECKPOINT_KIND, about, list_small_data_sets(snapshot), rows) as writer:
            for block in itertools.chain([first], blocks):
                if block.keys() != first.keys() or len({len(values) for values in block.values()}) > 1:
                    raise ValueError(f"the pieces of a checkpoint differ: {sorted(block)} after {sorted(first)}, "
                                     f"{sorted({len(values) for values in block.values()})} rows")
                for name, values in block.items():
                    writer.append(f"mine/{name}", values)
        with report_faulty_disk(path):
            check_checkpoint(part, READ_BACK_BYTES)
    return path


def copy_checkpoint(path: Path, to: Path) -> None:
    """Copy a checkpoint, and give the copy its name once all of it is verified. Raises StorageError."""
    with atomic(to) as part:
        shutil.copyfile(path, part)
        with report_faulty_disk(to):
            check_checkpoint(part)


def list_small_data_sets(snapshot: Snapshot) -> dict[str, np.ndarray]:
    """Return everything but the clients' rows as arrays, by their names in the file."""
    ids = np.asarray(snapshot.ids, np.int64)
    if np.any(np.diff(ids) <= 0):
        raise ValueError("the ids of a checkpoint must ascend")
    texts = {f"json/{name}": np.frombuffer(checkpoint_json(getattr(snapshot, field)).encode(), np.uint8)
             for name, field in JSON_ENTRIES.items()}
    return {"ids": ids} | {f"shared/{name}": require_numeric(name, value) for name,
                           value in snapshot.shared.items()} | texts


def list_libraries() -> dict[str, str]:
    """Name what a checkpoint was made with, for people who look into the file."""
    found = {"python": platform.python_version(), "numpy": np.__version__, "h5py": h5py.__version__,
             "hdf5": h5py.version.hdf5_version}
    with suppress(PackageNotFoundError):
        found["torch"] = version("torch")
    return found


class CheckpointFile(SealedFile):
    """A checkpoint that is open for reading: verified but for the clients' rows. Raises DamagedFile."""

    def __init__(self, path: Path | str):
        super().__init__(path, CHECKPOINT_KIND)

    def read_rows(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return rows [start, stop) of each Mine field, verified. Raises DamagedFile."""
        return {name.removeprefix("mine/"): self.rows(name, start, stop) for name in self.names("mine")}

    def snapshot(self) -> Snapshot:
        """Return all but the clients' rows. Raises DamagedFile."""
        shared = {name.removeprefix("shared/"): self.read(name) for name in self.names("shared")}
        values = {field: self.json(name) for name, field in JSON_ENTRIES.items()}
        values["config"] = rename_settings(values["config"])
        return Snapshot(shared=shared, ids=self.read("ids"), version=self.about["fedmpi"], **values)


def check_checkpoint(path: Path | str, most: float = math.inf) -> None:
    """Raise DamagedFile unless every byte is as it was written; of the rows, at most `most` bytes are looked at."""
    saved = CheckpointFile(path)
    for name in saved.names("mine"):
        saved.check_rows(name, most=most / len(saved.names("mine")))


def read_checkpoint(path: Path | str, check: bool = True) -> Snapshot:
    """Return what a checkpoint holds; with `check` once the clients' rows are verified, too. Raises DamagedFile."""
    if check:
        check_checkpoint(path)
    return CheckpointFile(path).snapshot()


def read_row_shapes(path: Path | str) -> dict[str, tuple[int, ...]]:
    """Return the shape of one client's row of each Mine field. Raises DamagedFile."""
    saved = CheckpointFile(path)
    return {name.removeprefix("mine/"): tuple(saved.places[name].shape[1:]) for name in saved.names("mine")}


def find_newest(folder: Path, rows: bool = True) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Return the newest checkpoint that verifies, or None, and those refused on the way with the reason.

    Args:
        rows: verify the clients' rows, too."""
    refused: list[tuple[Path, str]] = []
    for path in list_checkpoints(folder):
        try:
            (check_checkpoint if rows else CheckpointFile)(path)
            return path, refused
        except DamagedFile as error:
            refused.append((path, str(error)))
    return None, refused


def delete_old_checkpoints(folder: Path, keep: int, written: Path | None = None) -> None:
    """Delete all checkpoints but the last `keep`, the best and that just `written`, and what killed runs left
    half-written.

    Files without a valid seal neither count nor go: they may be of a newer fedmpi. Nothing goes unless
    one stays that verifies."""
    sealed = {path: score for path in list_checkpoints(folder) if (score := read_sealed_score(path)) is not None}
    stay = [*sealed][:keep] + [path for path in sealed if path == written]
    evaluated = [path for path in sealed if not math.isnan(sealed[path])]
    # Of equals the first one.
    stay += [max(reversed(evaluated), key=sealed.__getitem__)] if evaluated else []
    go = [path for path in sealed if path not in stay]
    if go and not any(map(is_sound_checkpoint, stay)):
        go = []
    for path in [*go, *match_files(Path(folder), PART_NAMES)]:
        with report_failed_writes(path):
            path.unlink()


def read_sealed_score(path: Path) -> float | None:
    """Return the score in the seal of a checkpoint, where it is called accuracy, None if the seal is not valid."""
    with (suppress(DamagedFile, StorageError, KeyError), refuse_damage(path, CHECKPOINT_KIND),
          open_regular(path) as file):
        return float(read_seal(file, CHECKPOINT_KIND)["accuracy"])
    return None


def is_sound_checkpoint(path: Path) -> bool:
    """Say whether a checkpoint is sound, as far as it is read back after it was written."""
    with suppress(DamagedFile, StorageError):
        check_checkpoint(path, READ_BACK_BYTES)
        return True
    return False
