"""Entry point of the command `fedmpi` and of `python -m fedmpi`."""
from __future__ import annotations

import sys


def main():
    from fedmpi.cli import app
    app()


if __name__ == "__main__":
    sys.exit(main())
