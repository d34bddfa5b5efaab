"""Paths that users give: `~`, and what to say of one that the operating system does not take."""
from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmpi.errors import BadInput

# What the system says of a path that the user should change; a full or a broken disk is another matter.
WRONG_PATH = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP,
              errno.EEXIST, errno.ENXIO}


def expand_user(text: str, where: str) -> Path:
    """Return a path with `~` or `~name` expanded. Raises BadInput if there is no such user.

    Args:
        where: the setting or option that gives the path, for the error."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise BadInput(f"{where} = {text}: there is no user of this name, or no home folder; write the whole "
                       "path") from None


def require_given_path(name: str, value: object, wanted: str) -> str:
    """Return the path of an argument as text. Raises BadInput for what is not a path."""
    path = require_path(name, value, wanted)
    if path is None:
        raise BadInput(f"{name}=None: give {wanted}")
    return path


def require_path(name: str, value: object, wanted: str = "a path") -> str | None:
    """Return the path that an argument gives as text, None if it gives none. Raises BadInput for what is not a path."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise BadInput(f"{name}={value!r}: give {wanted}")
    text = os.fspath(value)
    return os.fspath(expand_user(text, name)) if isinstance(text, str) and text.startswith("~") else text


def is_wrong_path(error: BaseException | None) -> bool:
    """Say whether an error is about a path that the user gave, and not about a disk that fails."""
    return isinstance(error, OSError) and error.errno in WRONG_PATH


def refuse_empty_path(option: str, path: str | None) -> None:
    """Raise BadInput for an empty path, as an empty variable of the shell leaves it: it would count as not given."""
    if path == "":
        raise BadInput(f'{option} "" is no path; give one, or leave {option} out')


@contextmanager
def refuse_wrong_paths() -> Iterator[None]:
    """Turn errors about paths that the user gave into BadInput."""
    try:
        yield
    except OSError as error:
        if not is_wrong_path(error):
            raise
        raise BadInput(describe_wrong_path(error)) from None


def describe_wrong_path(error: OSError) -> str:
    """Return what is wrong with a path, in one line with a remedy."""
    return f"{shorten_path(error.filename or 'a path')}: {error.strerror}; give another path"


def is_readable(folder: Path) -> bool:
    """Say whether a folder can be looked into, or is none."""
    try:
        return not folder.is_dir() or os.access(folder, os.R_OK | os.X_OK)
    # a folder above it
    except PermissionError:
        return False


def describe_unreadable(folder: Path) -> str:
    """Return what is known of a folder that cannot be looked into."""
    return f"{folder} cannot be looked into: {os.strerror(errno.EACCES)}"


def shorten_path(path: object) -> str:
    """Return a path as text of at most 100 characters."""
    name = str(path)
    return name if len(name) <= 100 else f"{name[:60]}...{name[-37:]}"


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, whatever the locale is, with escapes for bytes of names that are not text."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
