"""clients.csv of a run folder: what each client holds, a row for each."""
from __future__ import annotations

import csv
import io
from pathlib import Path

from fedmpi.data.federation import SAMPLE_PARTS, Federation
from fedmpi.errors import BadInput
from fedmpi.storage.seal import Flaw, open_regular
from fedmpi.task import CLASSIFICATION
from fedmpi.text import format_csv, printable

# The columns of numbers: the samples of each part, and the classes of the training samples.
SAMPLE_COLUMNS = tuple(f"{part}_samples" for part in SAMPLE_PARTS)
CLIENT_NUMBERS = (*SAMPLE_COLUMNS, "train_classes")


def format_client_table(federation: Federation) -> str:
    """Return a federation's clients as CSV, the new ones last.

    The columns are `client`, `name` and `group` where the data or the partition know them, CLIENT_NUMBERS (without
    classes if targets are learned) and, if there are new clients, `new_client`."""
    counts, names = federation.all_counts, federation.names.get("client_names")
    columns: dict[str, list[object]] = {"client": [*range(len(counts))]}
    if names:
        columns["name"] = [printable(name) for name in names]
    if federation.all_groups is not None:
        known = federation.group_names
        columns["group"] = [known[g] if known else g for g in federation.all_groups.tolist()]
    columns |= zip(SAMPLE_COLUMNS, counts.T.tolist(), strict=True)
    if federation.task is CLASSIFICATION:
        columns["train_classes"] = (federation.read_all_label_counts()[:, 0] > 0).sum(1).tolist()
    if federation.new_clients:
        columns["new_client"] = [int(i >= federation.clients) for i in range(len(counts))]
    return format_csv([columns, *zip(*columns.values(), strict=True)])


def read_client_numbers(path: Path, clients: int) -> dict[str, list[int]]:
    """Return the CLIENT_NUMBERS of all clients, those that the file has; {} if there is none, as in older folders.

    Raises BadInput if it is damaged, or has not this number of clients."""
    try:
        with open_regular(path) as file:
            text = io.StringIO(file.read().decode(errors="replace"), newline="")
        rows = [*csv.DictReader(text, restval="", strict=True)]
        if [row.get("client") for row in rows] != [str(i) for i in range(clients)]:
            raise Flaw(f"it does not list the clients 0 to {clients - 1}")
        return {name: [int(row[name]) for row in rows] for name in CLIENT_NUMBERS if name in rows[0]}
    except FileNotFoundError:
        return {}
    except (Flaw, OSError, csv.Error, ValueError) as error:
        raise BadInput(f"{path}: {error}; remove it, then tables of clients lack what it said") from None
