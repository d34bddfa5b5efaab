"""How a run tells its job script that it was refused.

Code 2 alone does not: srun also ends with 2 if a node cannot start the program, and so does a Python that does not find
its script. Such a start may succeed later or elsewhere, but a refused run would be refused again."""
from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fedmpi.errors import BAD_INPUT, FolderInUse


def mark_refusal(code: int, error: BaseException | None = None) -> None:
    """Leave the file that the job script has named, if there is one, and if this exit code says that the run was
    refused. The file says whether the error is that the folder is in use: then another job may well go on."""
    path = os.environ.get("FEDMPI_REFUSAL_FILE")
    if path and code == BAD_INPUT:
        # A disk that is full must not hide why the run was refused.
        with suppress(OSError):
            Path(path).write_text("in use\n" if isinstance(error, FolderInUse) else "refused\n")
