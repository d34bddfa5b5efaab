"""The history of a run: `round` (rounds,), and every measure of each client (rounds, N) or (rounds, N, width).

It lies in history.h5 and, while a large run goes on, in further parts history/ROUND.h5; all are sealed files. When
rounds are added, only the last part is written again, and a new one begins once that has PART_BYTES. So what is written
with a checkpoint stays the same however long the run is. When the run ends, the parts are merged into history.h5.
"""
from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from fedmpi.storage import run_files
from fedmpi.storage.atomic import atomic, refuse_special, report_failed_writes
from fedmpi.storage.listing import match_files
from fedmpi.storage.seal import DamagedFile, Flaw, is_plain_hdf5, refuse_damage, report_faulty_disk
from fedmpi.storage.sealed import RowsSpec, SealedFile, open_own, write_sealed

HISTORY_KIND = "history"
PART_BYTES = 8 << 20
# So many damaged histories stay, so that a job that is restarted on a bad disk does not fill it.
MOST_DAMAGED = 5
HistoryTable = dict[str, np.ndarray]


class Part(NamedTuple):
    """A part of a history; `after` is the last round of the part before, None if there was none."""
    path: Path
    after: int | None
    table: HistoryTable

    @property
    def last_round(self) -> int | None:
        """The last round up to here, None if there is none."""
        return int(self.table["round"][-1]) if len(self.table.get("round", ())) else self.after


class History:
    """The history of a run that goes on, of which rank 0 adds rounds."""

    def __init__(self, path: Path):
        self.path = path
        # rounds that are not on the disk yet
        self.pending: list[dict[str, np.ndarray]] = []
        # the part that grows; None: it was not read yet
        self.last: Part | None = None
        # the hash of all rounds so far, by which a checkpoint knows its history
        self.chain = ""

    def append(self, round: int, columns: dict[str, np.ndarray]) -> None:
        """Note the measures of a round, (N,) or (N, width) each, until `save`."""
        row = {"round": np.array(round, np.int64)} | {name: np.array(v) for name, v in columns.items()}
        self.pending.append(row)
        self.chain = add_to_chain(self.chain, row)

    def save(self) -> None:
        """Write what was noted. Raises StorageError, and DamagedFile if the part that grows cannot be read."""
        if not self.pending:
            return
        # Kept even if the write fails: it may have renamed the file, which then holds the rounds already.
        last = self.last = self.last or self.read_last()
        if sum(values.nbytes for values in last.table.values()) >= PART_BYTES:
            folder = self.path.with_suffix("")
            with report_failed_writes(folder):
                folder.mkdir(exist_ok=True)
            last = Part(folder / f"{self.pending[0]['round']:06d}.h5", last.last_round, {})
        rows = [{name: values[None] for name, values in row.items()} for row in self.pending]
        last = last._replace(table=join_tables([last.table] * bool(last.table) + rows))
        write_part(last)
        self.last = last
        self.pending.clear()

    def read_last(self) -> Part:
        """Return the last part, or a new one. Raises DamagedFile."""
        parts = list_parts(self.path)
        return read_part(parts[-1]) if parts else Part(self.path, None, {})

    def truncate(self, round: int, expected: str = "") -> str | None:
        """Drop what is after `round`. Puts a damaged history, or that of another run, aside, then returns what to tell
        the user.

        Args:
            expected: the chain that the checkpoint knows; "" if it knows none.

        Raises StorageError for a pipe, a device or a link to nothing in its place, which is left alone."""
        self.pending.clear()
        self.last, self.chain = None, ""
        refuse_special(self.path)
        paths = list_parts(self.path)
        if not paths:
            lost = f"{self.path} is not there: a new one starts, without each client's measures so far"
            return lost if expected else None
        try:
            cuts, chains = find_cuts(self.path, round)
            # what follows the expected round was measured after the checkpoint
            with refuse_damage(self.path, HISTORY_KIND):
                if expected not in chains:
                    raise Flaw("it does not hold the rounds that the checkpoint knows: it is another run's, or was "
                               "changed")
            self.apply_cuts(cuts)
        except DamagedFile as error:
            names = put_parts_aside(self.path, paths)
            return f"{self.path} is damaged ({error.why}): kept as {', '.join(names)}; a new one starts"
        self.chain = chains[-1]
        return None

    def apply_cuts(self, cuts: list[tuple[Path, int]]) -> None:
        """Leave so many rounds of each part, the last part first; of those without a round only history.h5 stays.
        Raises StorageError, and DamagedFile."""
        for path, keep in reversed(cuts):
            if keep or path == self.path:
                part = read_part(path)
                write_part(part._replace(table={name: values[:keep] for name, values in part.table.items()}))
            else:
                with report_failed_writes(path):
                    path.unlink()

    def merge(self) -> None:
        """Make one file of all parts, a part at a time. Raises StorageError, and DamagedFile for a damaged part."""
        paths = list_parts(self.path)
        if len(paths) < 2:
            return
        rounds, like = 0, HistoryTable()
        for part in read_parts(self.path):
            rounds += len(part.table["round"])
            like = {name: values[:0] for name, values in part.table.items()} | like
        with atomic(self.path) as made:
            specs = {name: RowsSpec(values.dtype, (rounds, *values.shape[1:])) for name, values in like.items()}
            with write_sealed(made, HISTORY_KIND, {"after": None}, {}, specs) as writer:
                for part in read_parts(self.path):
                    for name, values in join_tables([like, part.table]).items():
                        writer.append(name, values)
            with report_faulty_disk(self.path):
                SealedFile(made, HISTORY_KIND).close()
        self.last = None
        for path in paths[1:]:
            with report_failed_writes(path):
                path.unlink()
        with suppress(OSError):
            self.path.with_suffix("").rmdir()


def find_cuts(path: Path, round: int) -> tuple[list[tuple[Path, int]], list[str]]:
    """Return the parts of a history that have rounds after `round`, or none up to it, with how many of their rounds
    stay; and the chain after each round that stays, "" before the first one. Raises DamagedFile."""
    cuts, chains = list[tuple[Path, int]](), [""]
    for part in read_parts(path):
        keep = int(np.searchsorted(part.table["round"], round, "right"))
        for row in range(keep):
            chains.append(add_to_chain(chains[-1], {name: values[row] for name, values in part.table.items()}))
        if keep < len(part.table["round"]) or not keep:
            cuts.append((part.path, keep))
    return cuts, chains


def add_to_chain(chain: str, row: HistoryTable) -> str:
    """Return the hash of a history after one more round. What was not measured does not count, since a later round may
    add a column.

    Args:
        chain: the hash of the rounds before, "" if there are none.
        row: the measures of the round, (N,) or (N, width) each."""
    total = hashlib.sha256(chain.encode())
    for name in sorted(row):
        values = np.ascontiguousarray(row[name])
        if not (np.isnan(values).all() if values.dtype.kind == "f" else name != "round" and not values.any()):
            total.update(f"{name} {values.dtype} {values.shape}".encode() + values.tobytes())
    return total.hexdigest()


def list_parts(path: Path) -> list[Path]:
    """Return history.h5, if it is there, and the parts that belong to it, in order of their rounds."""
    return [path] * os.path.lexists(path) + match_files(path.with_suffix(""), "[0-9]*.h5")


def put_parts_aside(path: Path, parts: list[Path]) -> list[str]:
    """Rename the parts of a damaged history, of which history.h5 has this `path`; return their new names. Those of
    earlier ones stay, until there are MOST_DAMAGED."""
    for number in range(1, MOST_DAMAGED + 1):
        names = [make_aside_name(part, number) for part in parts]
        if not any(os.path.lexists(path.with_name(name)) for name in names):
            break
    for part, name in zip(parts, names, strict=True):
        with report_failed_writes(part):
            os.replace(part, path.with_name(name))
    return names


def make_aside_name(path: Path, number: int) -> str:
    """Return the name that a part of the first, second, ... damaged history gets, beside history.h5."""
    stem = "history-damaged" + f"-{number}" * (number > 1)
    return f"{stem}.h5" if path.name == run_files.HISTORY else f"{stem}-{path.name}"


def write_part(part: Part) -> None:
    """Write a part, read it back, and give it its name. Raises StorageError."""
    with atomic(part.path) as made:
        with write_sealed(made, HISTORY_KIND, {"after": part.after}, part.table, {}):
            pass
        with report_faulty_disk(part.path):
            SealedFile(made, HISTORY_KIND).close()


def read_part(path: Path) -> Part:
    """Read a part, also one of fedmpi 0.1, which had no seal. Raises DamagedFile."""
    with refuse_damage(path, HISTORY_KIND):
        if is_plain_hdf5(path):
            return Part(path, None, read_first_format(path))
        file = SealedFile(path, HISTORY_KIND)
        return Part(path, file.about["after"], {name: file.read(name) for name in file.places})


def read_first_format(path: Path) -> HistoryTable:
    """Return the data sets of a history of fedmpi 0.1. Raises Flaw for any that could fill the memory."""
    with h5py.File(path, "r", locking=False) as file:
        rounds, size = len(file["round"]), path.stat().st_size
        for name in file:
            data = open_own(file, name)
            # rounds without a measure take no room in the file, so a data set may be larger than that
            if data.compression or len(data) != rounds or (
                    data.dtype.itemsize * math.prod(data.shape) > size * max(1, rounds)):
                raise Flaw(f"{name} is compressed, or has another number of rounds, or more bytes than the file")
        return {name: file[name][:] for name in file}


def read_history(path: Path | str) -> HistoryTable:
    """Return a whole history: `round` (rounds,), and measures (rounds, N) or (rounds, N, width); nan or 0: not taken.

    `path` is that of history.h5; parts beside it belong to it. Raises DamagedFile."""
    with refuse_damage(path, HISTORY_KIND):
        return join_tables([part.table for part in read_parts(Path(path))])


def read_parts(path: Path) -> Iterator[Part]:
    """Yield the parts of a history with the rounds that no part before has. Raises DamagedFile."""
    last: int | None = None
    for found in list_parts(path) or [path]:
        part = read_part(found)
        with refuse_damage(found, HISTORY_KIND):
            if part.after is not None and (last is None or last < part.after):
                raise Flaw(f"the part before it, with the rounds up to {part.after}, is missing")
            # a merge that was killed leaves parts that history.h5 has taken in
            new = part.table["round"] > (-1 if last is None else last)
            part = part._replace(table={name: values[new] for name, values in part.table.items()})
        last = part.last_round if new.any() else last
        yield part


def join_tables(tables: list[HistoryTable]) -> HistoryTable:
    """Put tables one after another; where one lacks a measure there is nan, or 0 for integers."""
    like = {name: values for table in reversed(tables) for name, values in table.items()}
    rounds = [len(table["round"]) for table in tables]
    return {name: np.concatenate([table[name] if name in table else np.full((count, *first.shape[1:]),
                                                                            find_missing_value(first.dtype),
                                                                            first.dtype) for table,
                                  count in zip(tables, rounds, strict=True)]) for name, first in like.items()}


def find_missing_value(dtype: np.dtype) -> float:
    """Return what stands for a measure that was not taken."""
    return np.nan if dtype.kind == "f" else 0
