"""Download data sets once: one process at a time, in silence, and with an end if the server does not answer."""
from __future__ import annotations

import contextlib
import io
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# A download fails if the server is silent for so many seconds; compute nodes often cannot reach the internet.
MIRROR_TIMEOUT_S = 20


@contextlib.contextmanager
def prepare_download(root: Path, name: str) -> Iterator[None]:
    """Make ROOT, keep other processes out, and keep what a download prints off the terminal."""
    root.mkdir(parents=True, exist_ok=True)
    with hold_lock(root / f".{name}.lock"), silence_download():
        yield


@contextlib.contextmanager
def hold_lock(lock: Path) -> Iterator[None]:
    """Hold a lock file, because jobs that start together would unpack the same archive over one another.

    If the file cannot be locked, go on without a lock."""
    import fcntl
    with contextlib.ExitStack() as stack:
        # There may be no permission to write, or the file system may have no locks.
        with contextlib.suppress(OSError):
            fcntl.flock(stack.enter_context(open(lock, "w")), fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def silence_download() -> Iterator[None]:
    """Discard what a download prints, and let it fail after MIRROR_TIMEOUT_S seconds of silence."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(MIRROR_TIMEOUT_S)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        socket.setdefaulttimeout(before)


def finds_torchvision_files(root: Path, loader: str, archive: str) -> bool:
    """Say whether torchvision reads a data set below `root` without a download: it reads both parts, or finds the
    archives that it unpacks, whole.

    Args:
        loader: the name of torchvision's class
        archive: where the archives are below `root`; the name of the first folder or file shows what is there"""
    # The import costs seconds.
    if not any(root.glob(f"{re.split('/|-python', archive)[0]}*")):
        return False
    from torchvision import datasets
    from torchvision.datasets.utils import check_integrity
    cls = getattr(datasets, loader)
    try:
        with silence_download():
            return all(len(cls(root, train=part)) for part in (True, False))
    # A missing or damaged file makes torchvision raise anything.
    except Exception:
        return not list_unpacked(root, loader, archive) and all(
            check_integrity(path, md5) for path, md5 in list_archives(root, loader, archive).items())


def list_archives(root: Path, loader: str, archive: str) -> dict[Path, str | None]:
    """Return the files that torchvision downloads and unpacks, and their MD5 sums.

    Args: those of `finds_torchvision_files`."""
    from torchvision import datasets
    cls = getattr(datasets, loader)
    files = getattr(cls, "resources", None) or [(archive, getattr(cls, "tgz_md5", None))]
    return {(root / archive).parent / name: md5 for name, md5 in files}


def list_unpacked(root: Path, loader: str, archive: str) -> list[Path]:
    """Return the unpacked files of a data set if all are there; none of them is unpacked again, damaged or not.

    Args: those of `finds_torchvision_files`."""
    files = [path.with_suffix("") for path in list_archives(root, loader, archive) if path.suffix == ".gz"]
    return [path for path in files if path.is_file()] if all(path.exists() for path in files) else []
