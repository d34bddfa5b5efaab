"""Read the federations that fedmpi 0.1 wrote: HDF5 files without a seal, with one fingerprint of all samples."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import h5py
import numpy as np

from fedmpi.json_values import JsonObject
from fedmpi.storage.seal import Flaw, refuse_damage
from fedmpi.storage.sealed import Place, open_own

SMALL_DATA_SETS = ("y", "counts", "labels", "groups")
# So many rows of x are read and hashed at once.
BLOCK_ROWS = 4096


class FirstFormat:
    """A federation of fedmpi 0.1, which is read like a SealedFile.

    The file has no checksums of single clients. So all of it is read when it is opened, and its fingerprint is computed
    again. Raises DamagedFile if the file is incomplete or damaged."""

    def __init__(self, path: Path):
        self.path = path
        with refuse_damage(path, "federation"), h5py.File(path, "r", locking=False) as file:
            if not file.attrs.get("complete", False):
                raise Flaw("it was never completed")
            for name in file:
                if open_own(file, name).nbytes > path.stat().st_size:
                    raise Flaw(f"{name} claims more bytes than the file holds")
            self.about: JsonObject = json.loads(file.attrs["facts"])
            if self.about["format"] != 2:
                raise Flaw(f"it has format {self.about['format']} of fedmpi 0.1, which this fedmpi does not read")
            # The offset is 0 for all, because h5py cannot tell the offsets of chunks.
            self.places = {name: Place(0, file[name].dtype, file[name].shape) for name in file}
            small = {name: file[name][:] for name in SMALL_DATA_SETS if name in file}
            check = hashlib.sha256(file.attrs["facts"])
            for values in small.values():
                add_to_hash(check, values)
            x = file["x"]
            pieces = (x[at:at + BLOCK_ROWS] for at in range(0, len(x), BLOCK_ROWS))
            del small["labels"]
            if (file.attrs["check"].decode() != check.hexdigest()
                    or compute_fingerprint(x.shape, x.dtype, pieces, small) != self.about["fingerprint"]):
                raise Flaw("its checksum does not match its contents")

    def json(self, name: str) -> JsonObject:
        """Return the facts of the federation; this format has no other JSON, so the name is not used."""
        return self.about

    def read(self, name: str) -> np.ndarray:
        """Return a whole data set. Raises DamagedFile."""
        return self.rows(name, 0, self.places[name].shape[0])

    def rows(self, name: str, start: int, stop: int, edges: np.ndarray | None = None) -> np.ndarray:
        """Return the rows of the pieces from `start` to before `stop`. Raises DamagedFile.

        `edges` (pieces + 1,) gives the first row of each piece; without it every row is a piece."""
        at = slice(start, stop) if edges is None else slice(edges[start], edges[stop])
        with refuse_damage(self.path, "federation"), h5py.File(self.path, "r", locking=False) as file:
            return file[name][at]

    def check_rows(self, name: str, edges: np.ndarray | None = None, most: float = 0) -> None:
        """Do nothing, because everything was checked when the file was opened."""


def compute_fingerprint(shape: tuple[int, ...], dtype: np.dtype, x: Iterable[np.ndarray],
                        small: Mapping[str, np.ndarray]) -> str:
    """Return the fingerprint of a federation, a sha256 in hexadecimal digits.

    Args:
        shape: the shape of all samples together.
        dtype: their type.
        x: the samples, in consecutive pieces.
        small: the other arrays by their names."""
    whole = hashlib.sha256(f"{dtype.str}{tuple(map(int, shape))}".encode())
    for piece in x:
        whole.update(np.ascontiguousarray(piece))
    for name in sorted(small):
        add_to_hash(whole, small[name])
    return whole.hexdigest()


class Hash(Protocol):
    """A running hash of hashlib."""
    def update(self, data: bytes | np.ndarray, /) -> None:
        """Add these bytes."""


def add_to_hash(whole: Hash, values: np.ndarray) -> None:
    """Add the type, the shape and the numbers of an array to the running hash `whole`."""
    whole.update(f"{values.dtype.str}{values.shape}".encode())
    whole.update(np.ascontiguousarray(values))
