"""Which checkpoints lie in a folder, and how files are listed there.

A folder that cannot be listed is not an empty one: a run that took it for empty would begin anew over what it holds."""
from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path

from fedmpi.errors import StorageError
from fedmpi.storage import run_files
from fedmpi.storage.atomic import describe_reason
from fedmpi.storage.seal import suggest_remedy

# checkpoints; those that are not whole yet; those after the round from which the run went on anew
CHECKPOINT_NAMES, PART_NAMES, ASIDE_NAMES = "round-*.h5", "round-*.part", "aside-round-*.h5"


def match_files(folder: Path, pattern: str) -> list[Path]:
    """List the files of a folder whose names match a pattern of the shell, ordered by the numbers in their names; [] if
    there is no such folder. Raises StorageError if it is there but cannot be listed."""
    try:
        names = fnmatch.filter(os.listdir(folder), pattern)
    # A ValueError says that the name holds a NUL character.
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return []
    except OSError as error:
        raise StorageError(f"{folder} cannot be listed: {describe_reason(error)}; {suggest_remedy(error)}") from error
    # round-1000000.h5 comes after round-999999.h5.
    return [folder / name for name in sorted(names, key=lambda name: (len(name), name))]


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, newest first. Raises StorageError if it cannot be listed."""
    return match_files(Path(folder), CHECKPOINT_NAMES)[::-1]


def holds_checkpoint(folder: Path) -> bool:
    """Say whether a run has left a checkpoint in its folder, whole or not; also if that cannot be known."""
    try:
        return bool(list_checkpoints(folder / run_files.CHECKPOINTS))
    except StorageError:
        return True


def name_checkpoint(round: int) -> str:
    """Return the name of the checkpoint of a round."""
    return f"round-{round:06d}.h5"


def parse_round(path: Path) -> int:
    """Return the round in the name of a checkpoint, -1 if the name has none."""
    found = re.fullmatch(r"round-(\d+)\.h5", path.name)
    return int(found[1]) if found else -1


def find_saved_round(folder: Path) -> int | None:
    """Return the round of a run's newest checkpoint; None if there is none. Raises StorageError if the folder of its
    checkpoints cannot be listed."""
    rounds = map(parse_round, list_checkpoints(folder / run_files.CHECKPOINTS))
    return max((round for round in rounds if round >= 0), default=None)
