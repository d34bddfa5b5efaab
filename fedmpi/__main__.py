"""Entry point of the command `fedmpi` and of `python -m fedmpi`."""
from __future__ import annotations

import io
import sys


def main() -> None:
    """Run the command line."""
    from fedmpi.cli import app
    # What the terminal's encoding lacks is shown as an escape; names of files may hold any character.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    app()


if __name__ == "__main__":
    main()
