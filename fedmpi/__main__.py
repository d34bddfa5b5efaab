"""Entry point of the command `fedmpi` and of `python -m fedmpi`."""
from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Run the command line."""
    from fedmpi.cli import app
    for name in ("stdout", "stderr"):
        # Closed by `>&-` or a daemon. The next file would get its number, and what libraries print.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (open as long as the process)
    # What the terminal's encoding lacks is shown as an escape; names of files may hold any character.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    app()


if __name__ == "__main__":
    main()
