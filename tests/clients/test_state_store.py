"""The private states of clients."""
from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import pytest
import torch

from fedmpi.clients import state_store
from fedmpi.clients.state_store import StateStore, compute_digest, compute_run_digest
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.method import Nothing
from fedmpi.storage import checkpoint


class Mine(NamedTuple):
    w: torch.Tensor
    n: torch.Tensor


def store():
    return StateStore(Mine(torch.arange(4.), torch.tensor(7)))


def row(value):
    return Mine(torch.full((4,), float(value)), torch.tensor(value))


def test_an_untouched_client_reads_the_first_state():
    s = store()
    s.write(3, row(5))
    assert torch.equal(s.read(1).w, torch.arange(4.)) and torch.equal(s.read(3).w, row(5).w)
    assert s.find_touched([1, 3]).tolist() == [False, True]


def test_stacked_rows_follow_the_order_asked_for():
    s = store()
    s.write(3, row(5))
    s.write(1, row(2))
    stacked = s.stack([3, 0, 1])
    assert stacked["w"].shape == (3, 4) and stacked["n"].tolist() == [5, 7, 2]
    assert s.stack([])["w"].shape == (0, 4)


def test_a_restored_row_is_the_clients_own():
    s = store()
    array = {"w": np.ones(4, np.float32), "n": np.array(3)}
    s.restore(2, array)
    s.restore(5, array)
    array["w"][:] = 9
    s.read(2).w.mul_(2)
    assert s.read(5).w.tolist() == [1] * 4 and s.read(2).w.tolist() == [2] * 4
    assert s.first.w.tolist() == [0, 1, 2, 3]


def test_saved_and_restored_is_the_same():
    s, other = store(), store()
    s.write(4, row(8))
    other.restore(4, {name: rows[0] for name, rows in s.stack([4]).items()})
    assert s.digest(4).tolist() == other.digest(4).tolist() != s.digest(5).tolist()


def test_clients_that_keep_nothing():
    s = StateStore(Nothing())
    s.write(1, Nothing())
    assert not s.find_touched([1]).any() and s.stack([1]) == {}


def test_the_digest_sees_names_types_shapes_and_bytes():
    class Other(NamedTuple):
        v: torch.Tensor
        n: torch.Tensor
    w, n = torch.zeros(4), torch.tensor(7)
    states = [Mine(w, n), Mine(w.double(), n), Mine(w.view(2, 2), n), Mine(w, n + 1), Mine(-w, n), Other(w, n)]
    assert len({compute_digest(s) for s in states}) == len(states)


def test_states_beyond_the_memory_spill_and_come_back(tmp_path):
    s, whole = StateStore(store().first, memory=3 * 24, scratch=str(tmp_path)), store()
    for c in (4, 1, 9, 7, 1, 0):
        for each in (s, whole):
            each.write(c, row(10 * c))
    # The least recently used states were spilled.
    assert len(s._rows) == 3 and set(s._rows) == {7, 1, 0}
    assert s.find_touched(range(10)).tolist() == whole.find_touched(range(10)).tolist()
    for c in range(10):
        assert s.digest(c).tolist() == whole.digest(c).tolist()
    s.write(4, row(77))
    assert s.read(4).n == 77 and s.stack([9, 4])["n"].tolist() == [90, 77]
    # The scratch file has no name, so it cannot be left behind.
    assert not list(tmp_path.iterdir())


def test_a_state_that_was_spilled_twice_is_the_newer_one():
    s = StateStore(store().first, memory=1)
    for value in (1, 2):
        s.write(0, row(value))
        s.write(5, row(50))
    assert s.read(0).n == 2 and s.read(5).n == 50


def test_a_missing_scratch_folder_is_named_before_anything_is_trained(tmp_path):
    for bad in (tmp_path / "none", tmp_path / "file"):
        (tmp_path / "file").touch(0o700)
        with pytest.raises(BadInput, match=f"state.scratch = {bad}: no folder on .* in which this process may write"):
            StateStore(store().first, scratch=str(bad))


def test_scratch_space_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    s = StateStore(store().first, memory=1, scratch=str(tmp_path))
    s.write(3, row(1))

    def full(*_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(FedmpiError, match="state of client 3 cannot .* No space left on device; raise state.memory"):
        s.write(4, row(2))


def test_columns_of_a_spilled_state_are_read_without_the_rest(tmp_path, monkeypatch):
    s, read, moved = StateStore(store().first, memory=24, scratch=str(tmp_path)), os.preadv, []
    for client in (2, 5):
        s.write(client, row(10 + client))
    s.write(9, Mine(torch.arange(3., 7.), torch.tensor(1)))
    s.write(1, row(1))
    monkeypatch.setattr("os.preadv", lambda fd, parts, at: moved.append(read(fd, parts, at)) or moved[-1])
    found = {c: (s.read_columns(c, 0, 1, 3).tolist(), s.read_columns(c, 1, 0, 1).tolist()) for c in (0, 1, 2, 5, 9)}
    assert found == {0: ([1, 2], [7]), 1: ([1, 1], [1]), 2: ([12, 12], [12]), 5: ([15, 15], [15]), 9: ([4, 5], [1])}
    assert moved == [8] * 6 and s.read_columns(9, 0, 2, 2).tolist() == []
    assert s.read_columns(9, 1, 0, 1).dtype == torch.int64


def test_a_checkpoint_is_restored_piece_by_piece(tmp_path, monkeypatch):
    """Two states at once, of clients of whom some belong to other ranks."""
    ids, own, pieces, saved = np.array([0, 1, 2, 3, 5, 6, 9]), [0, 1, 2, 3, 6, 8, 9], [], store()
    for client in ids:
        saved.write(client, row(10 * client))
    snapshot = checkpoint.Snapshot(1, {}, ids, {}, "", 0., [], {})
    path = checkpoint.write_checkpoint(tmp_path, snapshot, iter([saved.stack(ids)]))
    read = checkpoint.CheckpointFile.read_rows
    monkeypatch.setattr(checkpoint.CheckpointFile, "read_rows",
                        lambda self, *where: pieces.append(where) or read(self, *where))
    monkeypatch.setattr(state_store, "PIECE_BYTES", 2 * 24)
    s = StateStore(store().first, memory=1)
    s.restore_from(path, ids, own)
    assert pieces == [(0, 2), (2, 4), (5, 7)]
    assert [int(s.read(c).n) for c in own] == [0, 10, 20, 30, 60, 7, 90] and s.read(5).n == 7


@pytest.mark.parametrize("memory", [float("inf"), 1])
def test_a_client_that_was_given_away_is_forgotten(memory):
    s = StateStore(store().first, memory)
    for client in range(4):
        s.write(client, row(client))
    assert torch.equal(s.pop(1).w, row(1).w) and torch.equal(s.pop(0).w, row(0).w)
    assert s.find_touched(range(4)).tolist() == [False, False, True, True] and torch.equal(s.read(1).w, s.first.w)
    for client in (7, 1, 8):
        s.write(client, row(10 + client))
    assert [int(s.read(c).n) for c in (7, 1, 8, 2, 3)] == [17, 11, 18, 2, 3]


def test_records_that_a_call_cannot_move_at_once(tmp_path, monkeypatch):
    """This happens above 2 GiB; here a call moves three bytes."""
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr("os.pwrite", lambda fd, data, at: write(fd, data[:3], at))
    monkeypatch.setattr("os.preadv", lambda fd, parts, at: read(fd, [parts[0][:3]], at))
    s = StateStore(store().first, memory=1, scratch=str(tmp_path))
    for client in (2, 1, 3):
        s.write(client, row(10 + client))
    assert all(torch.equal(s.read(c).w, row(10 + c).w) and s.read(c).n == 10 + c for c in (1, 2, 3))


def test_reading_is_use_and_the_bound_is_in_bytes(tmp_path):
    """Three rows of 24 bytes fit in 72; the one that was neither read nor written for the longest time is spilled."""
    s = StateStore(store().first, memory=72, scratch=str(tmp_path))
    for c in (1, 2, 3):
        s.write(c, row(c))
    assert not s._spill.places
    s.read(1)
    s.write(4, row(4))
    s.write(3, row(33))
    s.write(5, row(5))
    assert list(s._spill.places) == [2, 1] and [int(s.read(c).n) for c in range(1, 6)] == [1, 2, 33, 4, 5]


def test_places_of_clients_that_left_are_used_again():
    s = StateStore(store().first, memory=1)
    for c in range(5):
        s.write(c, row(c))
    s.pop(1), s.pop(2)
    for c in (7, 8, 9):
        s.write(c, row(c))
    assert sorted(s._spill.places.values()) == [0, 1, 2, 3, 4] and os.fstat(s._spill.file.fileno()).st_size == 5 * 24
    assert [int(s.read(c).n) for c in (0, 3, 4, 7, 8, 9, 1)] == [0, 3, 4, 7, 8, 9, 7]


def test_a_file_that_ends_too_early_or_fails_is_named(tmp_path, monkeypatch):
    s = StateStore(store().first, memory=1, scratch=str(tmp_path))
    for c in (3, 4):
        s.write(c, row(c))
    os.ftruncate(s._spill.file.fileno(), 10)
    with pytest.raises(FedmpiError, match=f"scratch space in {tmp_path} does not give back the state of client 3"):
        s.read(3)

    def fail(*_):
        raise OSError(5, "Input/output error")
    monkeypatch.setattr("os.preadv", fail)
    with pytest.raises(FedmpiError, match="not give back the state of client 3: Input/output error; set state.scratch"):
        s.read(3)


def test_digests_are_the_known_ones():
    """hashlib alone hashed these: the bytes 'w float32 (4,)', four floats, 'n int64 ()', an integer."""
    import hashlib
    s = store()
    for client, (w, n) in {0: (np.arange(4), 7), 3: (np.full(4, 5), 5)}.items():
        if client == 3:
            s.write(3, row(5))
        known = hashlib.sha256(b"w float32 (4,)" + w.astype("<f4").tobytes() + b"n int64 ()"
                               + np.int64(n).tobytes())
        assert s.digest(client).tobytes() == known.digest() and s.digest(client).dtype == np.uint8
    both = np.stack([s.digest(0), s.digest(3)])
    assert compute_run_digest(s.first, both) == hashlib.sha256(s.digest(0).tobytes() + both.tobytes()).hexdigest()
