"""Sealed HDF5 files: the one format of checkpoints, federations and histories. No damaged byte is ever taken for data.

    (4096 bytes)   the seal, written last, which marks the file as complete: a line with a checksum of what follows,
                   then JSON padded with blanks: format, kind, the file's size, the regions that hold rows, and a
                   checksum of all bytes outside the seal and these regions
    NAME           small data sets
    NAME           rows: large data sets, divided in pieces (a row each, or all rows of one client)
    digest/NAME    (pieces, 16): a checksum of each piece with its name, place, type and shape, so that every rank can
                   check the pieces that it reads, and no piece passes for another one

Only plain data sets are read: contiguous numbers that lie in the file itself. HDF5 sees a file only after the seal and
all bytes that HDF5 interprets were checked, since it may crash on damaged ones, and only to find the data sets: their
values are read by system calls, which notice when a file is cut off while it is in use.
"""
from __future__ import annotations

import io
import json
import math
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from fedmpi.json_values import Json, JsonObject
from fedmpi.storage import seal
from fedmpi.storage.hdf5_sink import Sink
from fedmpi.storage.seal import DIGEST_BYTES, HASH_BLOCK_BYTES, SEAL_BYTES, Flaw, refuse_damage

# Bytes of rows that are read back after a file was written.
READ_BACK_BYTES = 64 << 20


class Place(NamedTuple):
    """Where a data set lies in its file."""
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])


class SealedFile:
    """A sealed file that is open for reading. All but its rows is verified, rows are verified as they are read.

    Args:
        path: the file.
        kind: one of REFUSALS.

    Attributes: `about`, the entries of the seal; `places`, the Place of each data set by name. Raises DamagedFile."""

    def __init__(self, path: Path | str, kind: str):
        self.path, self.kind = Path(path), kind
        with refuse_damage(path, kind):
            self.file = seal.open_regular(path)
            weakref.finalize(self, self.file.close)
            self.about = seal.read_seal(self.file, kind)
            if seal.digest_outside(self.about["rows"], self.file, self.about["size"]) != self.about["digest"]:
                raise Flaw("its checksum is wrong")
            with h5py.File(self.file, "r", locking=False) as hdf5:
                self.places = find_data_sets(hdf5.id, self.about["size"])
            self.digests = {name.removeprefix("digest/"): self.read(name) for name in self.names("digest")}

    def close(self) -> None:
        """Close the file; this also happens when the object is no longer used."""
        self.file.close()

    def names(self, group: str) -> list[str]:
        """Return the names of the data sets of a group, with it."""
        return [name for name in self.places if name.startswith(f"{group}/")]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return a data set, or its rows [start, stop), without a look at their checksums."""
        with refuse_damage(self.path, self.kind):
            if name not in self.places:
                raise Flaw(f"it has no {name}")
            place = self.places[name]
            shape = place.shape if stop is None else (stop - start, *place.shape[1:])
            offset = place.offset + start * place.row_bytes
            data = seal.read_bytes(self.file, offset, place.dtype.itemsize * math.prod(shape))
            return np.frombuffer(data, place.dtype).reshape(shape)

    def json(self, name: str) -> Json:
        """Return the value of json/NAME."""
        with refuse_damage(self.path, self.kind):
            return json.loads(self.read(f"json/{name}").tobytes())

    def rows(self, name: str, start: int, stop: int, edges: np.ndarray | None = None) -> np.ndarray:
        """Return the rows of pieces [start, stop), verified.

        `edges` (pieces + 1,) says where each piece begins; without it each row is a piece. Raises DamagedFile."""
        with refuse_damage(self.path, self.kind):
            at = np.arange(start, stop + 1) if edges is None else edges[start:stop + 1]
            label = name.rpartition("/")[2]
            rows, known = self.read(name, int(at[0]), int(at[-1])), self.digests.get(label)
            if known is None:
                raise Flaw(f"it has no checksums of {label}")
            wrong = np.any(seal.digest_pieces(label, start, rows, at - at[0]) != known[start:stop], axis=1)
            if wrong.any():
                raise Flaw(f"the checksum of row {start + wrong.argmax()} of {label} is wrong")
            return rows

    def check_rows(self, name: str, edges: np.ndarray | None = None, most: float = math.inf) -> None:
        """Raise DamagedFile unless pieces agree with their checksums: all, or as many as `most` bytes hold, spread
        evenly."""
        place = self.places[name]
        count, size = len(edges) - 1 if edges is not None else place.shape[0], place.row_bytes * place.shape[0]
        at_once = max(1, HASH_BLOCK_BYTES * count // max(1, size))
        stride = at_once * max(1, math.ceil(size / max(1, most)))
        for start in range(0, count, stride):
            self.rows(name, start, min(count, start + at_once), edges)


def find_data_sets(group: h5py.h5g.GroupID, size: int, prefix: str = "") -> dict[str, Place]:
    """Return the place of each data set of a file of `size` bytes. Raises Flaw for one that is not plain.

    HDF5's own calls take half the time of h5py's groups and data sets, and a short run opens a file often."""
    found: dict[str, Place] = {}
    for link in group:
        name = prefix + link.decode(errors="surrogateescape")
        item = open_item(group, link, name)
        if isinstance(item, h5py.h5g.GroupID) and not prefix:
            found |= find_data_sets(item, size, f"{name}/")
        else:
            found[name] = find_place(name, item, size)
    return found


def open_item(group: h5py.h5g.GroupID, link: bytes, name: str) -> h5py.h5g.GroupID | h5py.h5d.DatasetID:
    """Return the item of a group that a link leads to; `name` is its name in the file. Raises Flaw for a link to
    another file or name."""
    if group.links.get_info(link).type != h5py.h5l.TYPE_HARD:
        raise Flaw(f"{name} is a link and not a data set of this file")
    return h5py.h5o.open(group, link)


def open_own(file: h5py.File, name: str) -> h5py.Dataset:
    """Return a data set of a file without a seal. Raises Flaw unless it holds numbers of this file."""
    find_own_layout(name, open_item(file.id, name.encode(), name))
    return file[name]


def find_place(name: str, item: h5py.h5d.DatasetID | h5py.h5g.GroupID, size: int) -> Place:
    """Return where a data set lies. Raises Flaw unless it is plain: contiguous numbers within its own file."""
    if find_own_layout(name, item) == h5py.h5d.CHUNKED:
        raise Flaw(f"{name} is in chunks or compressed and not a plain data set")
    bytes_, offset = item.dtype.itemsize * math.prod(item.shape), item.get_offset()
    if bytes_ and (offset is None or not SEAL_BYTES <= offset <= size - bytes_):
        raise Flaw(f"{name} claims more bytes than the file holds")
    return Place(offset or 0, item.dtype, item.shape)


def find_own_layout(name: str, item: h5py.h5d.DatasetID | h5py.h5g.GroupID) -> int:
    """Return how a data set lies in its file, one of h5py.h5d's layouts. Raises Flaw or TypeError unless it holds
    numbers, and no others than those of its own file."""
    if not isinstance(item, h5py.h5d.DatasetID):
        raise Flaw(f"{name} is not a plain data set")
    plan = item.get_create_plist()
    layout = int(plan.get_layout())
    if layout == h5py.h5d.VIRTUAL:
        raise Flaw(f"{name} is a virtual data set, made of other files")
    if plan.get_external_count():
        raise Flaw(f"{name} is an external data set, which lies in another file")
    require_numeric(name, np.empty(0, item.dtype))
    return layout


def require_numeric(name: str, value: np.ndarray | np.generic) -> np.ndarray:
    """Return an array of numbers or booleans. Raises TypeError for anything else."""
    value = np.asarray(value)
    if value.dtype.kind not in "fiub":
        raise TypeError(f"{name}: a sealed file holds numbers and booleans, not {value.dtype}")
    return value


class RowsSpec(NamedTuple):
    """The type and shape of a data set that is written piece by piece. Without `pieces`, the number of its pieces, it
    has no checksums of its own: that of the file covers it."""
    dtype: np.dtype
    shape: tuple[int, ...]
    pieces: int | None = None


class SealedWriter:
    """The rows of a file in the making: pieces are appended in order, and hashed on the way."""

    def __init__(self, path: Path, rows: Mapping[str, RowsSpec]):
        self.file = io.FileIO(path, "r+")
        with h5py.File(self.file, "r", locking=False) as hdf5:
            self.places = find_data_sets(hdf5.id, os.fstat(self.file.fileno()).st_size)
        self.digests = {name: np.empty((given.pieces, DIGEST_BYTES), np.uint8)
                        for name, given in rows.items() if given.pieces is not None}
        # rows and pieces so far
        self.done = dict.fromkeys(rows, (0, 0))

    def append(self, name: str, values: np.ndarray, whole: bool = False) -> None:
        """Write the next rows of a data set: each is a piece, or all of them are one (`whole`)."""
        place, (row, piece) = self.places[name], self.done[name]
        if values.dtype != place.dtype or values.shape[1:] != place.shape[1:] or row + len(values) > place.shape[0]:
            raise ValueError(f"{name}: {values.dtype} {values.shape} after {row} rows of {place.dtype} {place.shape}")
        values = np.ascontiguousarray(values)
        seal.write_bytes(self.file, place.offset + row * place.row_bytes, values)
        edges = np.array([0, len(values)]) if whole else np.arange(len(values) + 1)
        if name in self.digests:
            label = name.rpartition("/")[2]
            self.digests[name][piece:piece + len(edges) - 1] = seal.digest_pieces(label, piece, values, edges)
        self.done[name] = row + len(values), piece + len(edges) - 1

    def finish(self) -> None:
        """Write the checksums of all pieces. Raises ValueError if rows are missing."""
        for name, (rows, pieces) in self.done.items():
            wanted, known = self.places[name].shape[0], self.digests.get(name)
            if rows != wanted or known is not None and pieces != len(known):
                raise ValueError(f"{name}: {rows} rows in {pieces} pieces were written in place of {wanted}")
            if known is not None:
                seal.write_bytes(self.file, self.places[f"digest/{name.rpartition('/')[2]}"].offset, known)


@contextmanager
def write_sealed(part: Path, kind: str, about: JsonObject, small: Mapping[str, np.ndarray],
                 rows: Mapping[str, RowsSpec]) -> Iterator[SealedWriter]:
    """Yield a writer of rows; then seal the file and flush it to the disk.

    Args:
        part: the new file.
        kind: one of REFUSALS.
        about: further entries of the seal; the caller may add some until the last row is written.
        small: the small data sets by name.
        rows: the data sets that the writer fills, by name."""
    create_file(part, small, rows)
    writer = SealedWriter(part, rows)
    with writer.file as file:
        yield writer
        writer.finish()
        regions = sorted([writer.places[name].offset, writer.places[name].row_bytes * writer.places[name].shape[0]]
                         for name, given in rows.items() if given.pieces is not None)
        seal.put_seal(file, kind, about, [region for region in regions if region[1]])
        os.fsync(file.fileno())


def create_file(part: Path, small: Mapping[str, np.ndarray], rows: Mapping[str, RowsSpec]) -> None:
    """Write the HDF5 structure and the small data sets, and leave room for rows and their checksums."""
    with Sink(part) as sink:
        with h5py.File(sink, "w", userblock_size=SEAL_BYTES) as file:
            for group in dict.fromkeys(name.partition("/")[0] for name in [*small, *rows] if "/" in name):
                create_group(file, group)
            for name, value in small.items():
                file[name] = require_numeric(name, value)
            for name, (dtype, shape, pieces) in rows.items():
                reserve_data_set(file, name, require_numeric(name, np.empty(0, dtype)).dtype, shape)
                if pieces is not None:
                    digests = f"digest/{name.rpartition('/')[2]}"
                    reserve_data_set(file, digests, np.dtype(np.uint8), (pieces, DIGEST_BYTES))
        sink.check()


def create_group(file: h5py.File, name: str) -> None:
    """Create a group that lists its members in the order in which they came, and has no time stamp.

    The lowest h5py that is supported has no argument for the latter."""
    plan = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    plan.set_obj_track_times(False)
    plan.set_link_creation_order(h5py.h5p.CRT_ORDER_TRACKED | h5py.h5p.CRT_ORDER_INDEXED)
    plan.set_attr_creation_order(h5py.h5p.CRT_ORDER_TRACKED | h5py.h5p.CRT_ORDER_INDEXED)
    h5py.h5g.create(file.id, name.encode(), gcpl=plan)


def reserve_data_set(file: h5py.File, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Create a contiguous data set that has its place in the file at once, though nothing is written to it."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    # the same content gives the same bytes, whenever it is written
    plan.set_obj_track_times(False)
    group, _, last = name.rpartition("/")
    parent = file.require_group(group) if group else file
    h5py.h5d.create(parent.id, last.encode(), h5py.h5t.py_create(dtype, logical=True),
                    h5py.h5s.create_simple(shape), plan)
