"""Which checkpoints lie in a folder, and how files are listed there.

A folder that cannot be listed is not an empty one: a run that took it for empty would begin anew over what it holds."""
from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path

from fedmpi.errors import StorageError
from fedmpi.storage.atomic import describe_reason

CHECKPOINT_NAMES = "round-*.h5"


def match_files(folder: Path, pattern: str) -> list[Path]:
    """List the files of a folder whose names match a pattern of the shell, in no order; [] if there is no such folder.

    Raises StorageError if it is there but cannot be listed."""
    try:
        return [folder / name for name in fnmatch.filter(os.listdir(folder), pattern)]
    # A ValueError says that the name holds a NUL character.
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return []
    except OSError as error:
        raise StorageError(f"{folder} cannot be listed: {describe_reason(error)}; give this user the right to read it, "
                           "or start again once its file system is well") from error


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, newest first. Raises StorageError if it cannot be listed."""
    found = match_files(Path(folder), CHECKPOINT_NAMES)
    return sorted(found, key=lambda path: (len(path.name), path.name), reverse=True)


def holds_checkpoint(folder: Path) -> bool:
    """Say whether a run has left a checkpoint in its folder, whole or not; also if that cannot be known."""
    try:
        return bool(list_checkpoints(folder / "checkpoints"))
    except StorageError:
        return True


def parse_round(path: Path) -> int:
    """Return the round in the name of a checkpoint, -1 if the name has none."""
    found = re.fullmatch(r"round-(\d+)\.h5", path.name)
    return int(found[1]) if found else -1


def find_saved_round(folder: Path) -> int | None:
    """Return the round of a run's newest checkpoint; None if there is none. Raises StorageError if the folder of its
    checkpoints cannot be listed."""
    rounds = map(parse_round, list_checkpoints(folder / "checkpoints"))
    return max((round for round in rounds if round >= 0), default=None)
