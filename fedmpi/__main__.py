"""Entry point of the command `fedmpi` and of `python -m fedmpi`."""
from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from fedmpi.cli import app
    app()


if __name__ == "__main__":
    main()
