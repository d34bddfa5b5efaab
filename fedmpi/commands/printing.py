"""How a command prints an error that is for the user."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from fedmpi.errors import BAD_INPUT, FedmpiError, StorageError
from fedmpi.own_code.failures import blame_own_code
from fedmpi.paths import is_wrong_path, refuse_wrong_paths
from fedmpi.text import print_failure


@contextmanager
def print_errors() -> Iterator[None]:
    """Print an error that is for the user (FedmpiError, of own code, of a path) as one message; exit with its code."""
    try:
        with blame_own_code(), refuse_wrong_paths():
            yield
    except FedmpiError as error:
        print_failure(f"fedmpi: {error}")
        wrong_path = isinstance(error, StorageError) and is_wrong_path(error.__cause__)
        raise typer.Exit(BAD_INPUT if wrong_path else error.code) from None
