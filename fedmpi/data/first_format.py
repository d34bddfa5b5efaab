"""Federations as fedmpi 0.1 wrote them: HDF5 without a seal, with one fingerprint of all samples."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fedmpi.storage.seal import Flaw, refuse_damage
from fedmpi.storage.sealed import Place, refuse_foreign

SMALL_DATA_SETS = ("y", "counts", "labels", "groups")
BLOCK_ROWS = 4096      # of x, hashed at once


class FirstFormat:
    """A federation of fedmpi 0.1, to be read as a SealedFile is. It has no checksums of single clients, so all of it
    is read when it is opened, and its fingerprint computed again. Raises Damaged."""

    def __init__(self, path: Path):
        self.path = path
        with refuse_damage(path, "federation"), h5py.File(path, "r", locking=False) as file:
            if not file.attrs.get("complete", False):
                raise Flaw("it was never completed")
            for name in file:
                if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                    raise Flaw(f"{name} is a link and not a data set of this file")
                refuse_foreign(name, file[name])
                if file[name].nbytes > path.stat().st_size:
                    raise Flaw(f"{name} claims more bytes than the file holds")
            self.about: dict[str, Any] = json.loads(file.attrs["facts"])
            if self.about["format"] != 2:
                raise Flaw(f"it has format {self.about['format']} of fedmpi 0.1, which this fedmpi does not read")
            # h5py has no offsets of chunks to tell
            self.places = {name: Place(0, file[name].dtype, file[name].shape) for name in file}
            small = {name: file[name][:] for name in SMALL_DATA_SETS if name in file}
            check = hashlib.sha256(file.attrs["facts"])
            for values in small.values():
                absorb(check, values)
            x = file["x"]
            pieces = (x[at:at + BLOCK_ROWS] for at in range(0, len(x), BLOCK_ROWS))
            del small["labels"]
            if (file.attrs["check"].decode() != check.hexdigest()
                    or fingerprint_of(x.shape, x.dtype, pieces, small) != self.about["fingerprint"]):
                raise Flaw("its checksum does not match its contents")

    def json(self, name: str) -> Any:
        return self.about

    def read(self, name: str) -> np.ndarray:
        """Return a data set."""
        return self.rows(name, 0, self.places[name].shape[0])

    def rows(self, name: str, start: int, stop: int, edges: np.ndarray | None = None) -> np.ndarray:
        """Return the rows of pieces [start, stop); `edges` (pieces + 1,) says where each begins. Raises Damaged."""
        at = slice(start, stop) if edges is None else slice(edges[start], edges[stop])
        with refuse_damage(self.path, "federation"), h5py.File(self.path, "r", locking=False) as file:
            return file[name][at]

    def check_rows(self, name: str, edges: np.ndarray | None = None, most: float = 0) -> None:
        """Do nothing: all was read when the file was opened."""


def fingerprint_of(shape: tuple[int, ...], dtype: np.dtype, x: Iterable[np.ndarray],
                   small: Mapping[str, np.ndarray]) -> str:
    """Return what tells two federations apart: the sha256 of the samples, given in pieces, and of `small`."""
    whole = hashlib.sha256(f"{dtype.str}{tuple(map(int, shape))}".encode())
    for piece in x:
        whole.update(np.ascontiguousarray(piece))
    for name in sorted(small):
        absorb(whole, small[name])
    return whole.hexdigest()


def absorb(whole: Any, values: np.ndarray) -> None:
    """Add an array to a running hash: its type, its shape and its numbers."""
    whole.update(f"{values.dtype.str}{values.shape}".encode())
    whole.update(np.ascontiguousarray(values))
