"""The states of files, by which a change of the data is noticed."""
from __future__ import annotations

import hashlib
from pathlib import Path

# The states of more files than these are hashed: an image folder has a file for each sample.
MANY_FILES = 64


def describe_file_states(paths: list[Path]) -> list[str]:
    """Return the state of each file that can be seen, or one hash of them if they are many."""
    states = list(filter(None, map(describe_file_state, paths)))
    if len(states) <= MANY_FILES:
        return states
    # A path may have bytes that are not UTF-8.
    text = "\n".join(states).encode(errors="surrogateescape")
    return [f"{len(states)} files {hashlib.sha256(text).hexdigest()}"]


def describe_file_state(path: Path) -> str:
    """Return the full path, the size in bytes and the time of change of a file, or "" if it cannot be seen."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{path.resolve()} {found.st_size} {found.st_mtime_ns}"


def are_filled(paths: list[Path]) -> bool:
    """Say whether there are some paths, and each is that of a folder or of a file that is not empty."""
    return bool(paths) and all(path.is_dir() or path.is_file() and path.stat().st_size > 0 for path in paths)
