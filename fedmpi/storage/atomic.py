"""Files that are either whole or not there, whatever happens while they are written."""
from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedmpi.errors import StorageError
from fedmpi.paths import is_wrong_path, shorten_path

# What the system says if a folder, or a pipe that nobody reads, has the name of the file.
IN_ITS_PLACE = {errno.EISDIR, errno.ENXIO, errno.EEXIST}


@contextmanager
def atomic(path: Path, part: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; then make it durable and rename it.

    Args:
        path: the file that is made, or replaced as a whole.
        part: the temporary path; by default `path` with the suffix `.part`, for files that one process writes.

    After any exception the temporary file is gone and `path` is as it was (or new, if only the flush of its folder
    failed). Raises StorageError for OSError, and for a `path` that is a device or a pipe."""
    with report_failed_writes(path):
        refuse_special(path)
    part = part or path.with_name(path.name + ".part")
    # A killed process may have left one; a pipe would be waited for, and a link written through.
    with report_failed_writes(part):
        part.unlink(missing_ok=True)
    try:
        with report_failed_writes(path):
            yield part
            sync(part)
            os.replace(part, path)
            sync(path.parent)
    finally:
        with suppress(OSError):
            part.unlink()


def refuse_special(path: Path) -> None:
    """Raise StorageError for a device, a pipe, a socket, or a link to one or to nothing: a rename would replace it.

    The cause says that something is in the file's place."""
    taken = OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    if not path.name:
        raise StorageError(f"{path} cannot be written: it is a folder; give the name of a file") from taken
    if path.is_symlink() and not path.exists():
        raise StorageError(f"{path} cannot be written: it is a link to a file that is not there; remove the link, or "
                           "give another name") from taken
    with suppress(OSError):
        mode = path.stat().st_mode
        # The system itself refuses to replace a folder.
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise StorageError(f"{path} cannot be written: it is not a regular file; give the name of one, or one that "
                               "is not there yet") from taken


@contextmanager
def report_failed_writes(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal into a StorageError that names the file."""
    try:
        yield
    except OSError as error:
        remedy = ("remove what is in its place" if error.errno in IN_ITS_PLACE else
                  "give a shorter name" if error.errno == errno.ENAMETOOLONG else "free some space or check the folder")
        raise StorageError(f"{path} cannot be written: {describe_reason(error)}; {remedy}") from error


def report_failing_disk(path: Path, error: Exception) -> None:
    """Raise StorageError if it is the disk that keeps a start from the run folder `path`, and not its name."""
    if isinstance(error, OSError) and not is_wrong_path(error):
        raise StorageError(f"run folder {shorten_path(path)} cannot be written: {describe_reason(error)}; free some "
                           "space or check the folder, and start again") from error


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def describe_reason(error: BaseException) -> str:
    """Say in one line what went wrong; the messages of HDF5 carry addresses and times that help nobody."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else f"{type(error).__name__}: {' '.join(str(error).split())}"
