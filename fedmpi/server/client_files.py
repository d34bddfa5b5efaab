"""Files of the user that say something of single clients: when they are available, how fast they are (rank 0)."""
from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.errors import BadInput
from fedmpi.paths import expand_user
from fedmpi.storage.seal import Flaw, open_regular

if TYPE_CHECKING:
    from fedmpi.config.schema import Config

# The longest file that is read.
MAX_BYTES = 1 << 28


def read_user_file(name: str, where: str) -> bytes:
    """Return what a file of the user holds. Raises BadInput.

    Args:
        where: the setting that names it."""
    path = expand_user(name, where)
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise BadInput(f"{where} = {name}: it has more than {MAX_BYTES >> 20} MiB; is it the right file?")
            return file.read()
    except Flaw as flaw:
        raise BadInput(f"{where} = {name}: {flaw}; give another file") from None
    except OSError as error:
        raise BadInput(f"{where} = {name}: cannot read it: {error.strerror}; give another file") from None


def list_client_files(config: Config) -> dict[str, str]:
    """Return the files that decide who takes part, by the setting that names them."""
    files = {"availability.file": config.availability and config.availability.file,
             "stragglers.file": config.stragglers and config.stragglers.file}
    return {name: file for name, file in files.items() if file}


def hash_client_files(config: Config) -> dict[str, str]:
    """Return the sha256 of each of `list_client_files`. Raises BadInput."""
    return {name: hashlib.sha256(read_user_file(file, name)).hexdigest()
            for name, file in list_client_files(config).items()}


def read_rows(name: str, where: str, columns: tuple[str, ...], clients: int) -> np.ndarray:
    """Return the rows of a CSV or JSON file as numbers, (rows, columns). Raises BadInput.

    Args:
        where: the setting that names it.
        columns: the columns that are read, of which the first holds the number of the client.
        clients: the number of clients N."""
    where_name = f"{where} = {name}"
    try:
        text = read_user_file(name, where).decode("utf-8-sig")
        records = iterate_json(text, columns) if Path(name).suffix == ".json" else iterate_csv(text, columns)
        rows = [[to_number(value) for value in record] for record in records]
    except (ValueError, OverflowError, RecursionError, csv.Error) as error:
        raise BadInput(f"{where_name}: {' '.join(str(error).split())[:200]}; give a .csv file with the columns "
                       f"{', '.join(columns)}, or a .json file with a list of such mappings") from None
    if not rows:
        raise BadInput(f"{where_name}: it has no rows; give a row for each client")
    table = np.array(rows, float)
    wrong = table[(table[:, 0] % 1 != 0) | (table[:, 0] < 0) | (table[:, 0] >= clients), 0]
    if len(wrong):
        raise BadInput(f"{where_name}: there is no client {wrong[0]:g}; the run has the clients 0 to {clients - 1}")
    return table


def iterate_csv(text: str, columns: tuple[str, ...]) -> Iterator[list[object]]:
    """Yield the values of each line of CSV under a line of names. Raises ValueError."""
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
        raise ValueError(f"it has no column {missing[0]}")
    for record in reader:
        yield [record[name] for name in columns]


def iterate_json(text: str, columns: tuple[str, ...]) -> Iterator[list[object]]:
    """Yield the values of each mapping of a JSON list. Raises ValueError."""
    records = json.loads(text)
    if not isinstance(records, list):
        raise ValueError("it is no list")
    for record in records:
        if not isinstance(record, dict) or (missing := [name for name in columns if name not in record]):
            raise ValueError(f"{str(record)[:60]} has no {missing[0] if isinstance(record, dict) else columns[0]}")
        yield [record[name] for name in columns]


def to_number(value: object) -> float:
    """Return a value as a finite number. Raises ValueError and OverflowError."""
    number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    if not math.isfinite(number):
        raise ValueError(f"{str(value)[:60]!r} is no number")
    return number
