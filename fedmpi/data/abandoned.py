"""Delete the unfinished files that killed preparations of federations left."""
from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path

from fedmpi.storage import lock

# If an unfinished file was not written to for so many seconds, its writer is taken for dead.
ABANDONED_S = 3600.0


def remove_abandoned(folder: Path) -> None:
    """Delete the unfinished files that killed preparations left.

    A file of this machine is deleted if its process is gone; any other file if it was not written to for ABANDONED_S
    seconds."""
    for path in folder.glob("*.h5.*.tmp"):
        found = re.fullmatch(r".*\.(?:(\w+)-(\d+)-)?\w+\.tmp", path.name)
        if not found:
            continue
        with contextlib.suppress(OSError):
            machine, pid = found.groups()
            silent = lock.measure_silence(path) >= ABANDONED_S
            if lock.read_start_mark(int(pid)) is None if machine == read_machine_code() else silent:
                path.unlink()


def read_machine_code() -> str:
    """Return a short code of this boot of this machine, inside which a process id is unique."""
    return hashlib.sha256(lock.describe_this_process()["processes"].encode()).hexdigest()[:8]
