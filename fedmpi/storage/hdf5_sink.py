"""What h5py writes to: a file that keeps the refusals of a full disk from HDF5."""
from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Sink(io.FileIO):
    """A new file for h5py, which crashes the process when the disk refuses what HDF5 still has to write.

    So the refusal is hidden from HDF5 and raised (OSError) by `check` after HDF5 has closed the file."""

    def __init__(self, path: Path):
        super().__init__(path, "w+")
        self.refusal: OSError | None = None

    def write(self, data: Buffer) -> int:
        """Write all of `data`, or nothing more once the disk has refused; tell HDF5 that all was written."""
        rest = memoryview(data)
        while rest and not self.refusal:
            with self.remembering():
                rest = rest[super().write(rest):]
        return memoryview(data).nbytes

    def truncate(self, size: int | None = None) -> int:
        """Cut or extend the file, as HDF5 asks; return its new size, also if the disk has refused."""
        wanted = self.tell() if size is None else size
        with self.remembering():
            super().truncate(wanted)
        return wanted

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Keep the first refusal of the disk in place of raising it."""
        try:
            yield
        except OSError as error:
            self.refusal = self.refusal or error

    def check(self) -> None:
        """Raise the OSError with which the disk refused, if it did."""
        if self.refusal:
            raise self.refusal
