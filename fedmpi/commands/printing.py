"""How a command prints an error that is for the user."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from fedmpi.errors import BAD_INPUT, FedmpiError, StorageError
from fedmpi.own_code.failures import blame_own_code
from fedmpi.paths import is_wrong_path, refuse_wrong_paths
from fedmpi.text import format_error


@contextmanager
def print_errors() -> Iterator[None]:
    """Print an error that is for the user (FedmpiError, of own code, of a path) as one message; exit with its code."""
    try:
        with blame_own_code(), refuse_wrong_paths():
            yield
    except FedmpiError as error:
        print(f"fedmpi: {format_error(error)}", file=sys.stderr)
        wrong_path = isinstance(error, StorageError) and is_wrong_path(error.__cause__)
        raise typer.Exit(BAD_INPUT if wrong_path else error.code) from None
