"""The layout of sealed files lets several processes write rows of one checkpoint, which one of them seals.

At present rank 0 writes all rows. These tests keep the format ready for a writer per node: the place of every row is
known before the first row is written, a writer needs only that place, and the file has the same bytes."""
from __future__ import annotations

import os
from io import FileIO
from typing import NamedTuple

import numpy as np
import pytest
import torch

from fedmpi.clients.state_store import StateStore
from fedmpi.storage import seal
from fedmpi.storage.checkpoint import CHECKPOINT_KIND, CheckpointFile, check_checkpoint, list_small_data_sets
from fedmpi.storage.sealed import RowsSpec, write_sealed
from tests.storage.test_checkpoint import snapshot

CLIENTS = 11
ROWS = {"w": np.arange(CLIENTS * 5, dtype=np.float32).reshape(CLIENTS, 5), "n": np.arange(CLIENTS) % 2 > 0}
# The clients that each of two nodes hosts: they interleave, as `placement=balanced` has it.
NODES = (np.array([0, 3, 4, 7, 10]), np.array([1, 2, 5, 6, 8, 9]))
SPECS = {f"mine/{name}": RowsSpec(rows.dtype, rows.shape, CLIENTS) for name, rows in ROWS.items()}


class Mine(NamedTuple):
    """What a client keeps."""
    w: torch.Tensor
    n: torch.Tensor


def state():
    """Return what a checkpoint of these clients holds beside their rows."""
    return list_small_data_sets(snapshot(ids=np.arange(CLIENTS)))


def write_by_one(path):
    with write_sealed(path, CHECKPOINT_KIND, {"round": 12, "accuracy": .5}, state(), SPECS) as writer:
        for name, rows in ROWS.items():
            writer.append(f"mine/{name}", rows)


def write_rows_of_node(path, places, ids) -> dict[str, np.ndarray]:
    """Write a node's rows at their places; return their checksums, 16 bytes a row."""
    digests = {}
    with FileIO(os.open(path, os.O_WRONLY), "w") as file:
        for name, rows in ROWS.items():
            place = places[f"mine/{name}"]
            for client in ids:
                seal.write_bytes(file, place.offset + client * place.row_bytes, rows[client:client + 1])
            digests[name] = np.concatenate([
                seal.digest_pieces(name, client, rows[client:client + 1], np.array([0, 1])) for client in ids])
        os.fsync(file.fileno())
    return digests


def write_by_nodes(path):
    """Let two processes write the rows of their nodes at the same time and send this process the checksums."""
    with write_sealed(path, CHECKPOINT_KIND, {"round": 12, "accuracy": .5}, state(), SPECS) as writer:
        children = []
        for ids in NODES:
            ours, its = os.pipe()
            child = os.fork()
            if not child:
                try:
                    for digests in write_rows_of_node(path, writer.places, ids).values():
                        os.write(its, digests.tobytes())
                finally:
                    os._exit(0)
            os.close(its)
            children.append((child, ours, ids))
        for child, ours, ids in children:
            os.waitpid(child, 0)
            with open(ours, "rb") as said:
                told = np.frombuffer(said.read(), np.uint8).reshape(len(ROWS), len(ids), seal.DIGEST_BYTES)
            for name, digests in zip(ROWS, told, strict=True):
                writer.digests[f"mine/{name}"][ids] = digests
        writer.done = dict.fromkeys(SPECS, (CLIENTS, CLIENTS))


def test_the_bytes_do_not_depend_on_the_number_of_writers(tmp_path):
    write_by_one(tmp_path / "one.h5")
    write_by_nodes(tmp_path / "nodes.h5")
    assert (tmp_path / "nodes.h5").read_bytes() == (tmp_path / "one.h5").read_bytes()
    check_checkpoint(tmp_path / "nodes.h5")


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_any_number_of_ranks_reads_what_two_nodes_wrote(tmp_path, ranks):
    path = tmp_path / "nodes.h5"
    write_by_nodes(path)
    for rank in range(ranks):
        own = [*range(rank, CLIENTS, ranks)]
        store = StateStore(Mine(torch.zeros(5), torch.tensor(False)))
        store.restore_from(str(path), np.arange(CLIENTS), own)
        for name, rows in store.stack(own).items():
            np.testing.assert_array_equal(rows, ROWS[name][own])


def test_rows_that_a_writer_did_not_finish_are_found(tmp_path):
    """A node that died leaves its rows as they were, so their checksums are wrong."""
    path = tmp_path / "half.h5"
    with write_sealed(path, CHECKPOINT_KIND, {"round": 12, "accuracy": .5}, state(), SPECS) as writer:
        for name, digests in write_rows_of_node(path, writer.places, NODES[0]).items():
            writer.digests[f"mine/{name}"][:] = 0
            writer.digests[f"mine/{name}"][NODES[0]] = digests
        writer.done = dict.fromkeys(SPECS, (CLIENTS, CLIENTS))
    found = CheckpointFile(path)
    assert found.read_rows(3, 5)["n"].tolist() == [True, False]
    with pytest.raises(seal.DamagedFile, match="the checksum of row 1 of"):
        found.read_rows(0, 3)
