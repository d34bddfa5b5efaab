"""Damage to checkpoints: whatever happens to their bytes, it is found before anything is taken for state."""
from __future__ import annotations

import random

import h5py
import pytest

from fedmpi import seal
from fedmpi.checkpoint import Damaged, newest, prune, read, write
from tests.test_checkpoint import content, pieces, snapshot


def flip(data: bytearray, at: int, chance: random.Random):
    data[at] ^= 1 << chance.randrange(8)


def cut(data: bytearray, at: int, chance: random.Random):
    del data[at:]


def blank(data: bytearray, at: int, chance: random.Random):
    size = min(chance.choice([4, 64, 512, 4096]), len(data) - at)
    data[at:at + size] = bytes(size)


def insert(data: bytearray, at: int, chance: random.Random):
    data[at:at] = chance.randbytes(8)


def test_no_damage_goes_unseen(tmp_path):
    path = write(tmp_path, snapshot(), pieces())
    good, whole = path.read_bytes(), content(path)
    refused = 0
    for seed in range(240):
        chance, data = random.Random(seed), bytearray(good)
        at = chance.randrange(len(data)) if seed % 3 else chance.choice(seal.read(path)["rows"])[0]
        (flip, flip, cut, blank, insert)[seed % 5](data, at, chance)
        damaged = tmp_path / "damaged.h5"
        damaged.write_bytes(data)
        try:
            assert content(damaged) == whole, f"seed {seed}"
        except Damaged as error:
            assert str(damaged) in str(error)
            refused += 1
    assert refused > 200


def test_the_seal_is_checked_too(tmp_path):
    path = write(tmp_path, snapshot(), pieces())
    path.write_bytes(path.read_bytes().replace(b'"accuracy": 0.75', b'"accuracy": 0.95', 1))
    with pytest.raises(Damaged, match="the checksum of its first 4096 bytes is wrong"):
        read(path)


@pytest.mark.parametrize("trick, message", [
    (lambda file: file.create_dataset("shared/evil", (2**50,), "f8", chunks=(99,)), "evil is not a plain"),
    (lambda file: file.create_dataset("shared/evil", (2,), "f8", external="/etc/passwd"), "evil is not a"),
    (lambda file: file.__setitem__("shared/evil", h5py.ExternalLink("other.h5", "x")), "evil is not a plain"),
    (lambda file: file.create_dataset("shared/evil", data="text"), "holds numbers and booleans, not .S4"),
    (lambda file: file.__delitem__("json/books"), "doesn't exist"),
    (lambda file: file.__delitem__("digest/w"), "doesn't exist"),
])
def test_a_well_sealed_file_with_strange_content_is_refused(tmp_path, trick, message):
    path = write(tmp_path, snapshot(), pieces())
    regions = seal.read(path)["rows"]
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = 1.
    with h5py.File(path, "r+", locking=False) as file:
        trick(file)
    seal.put(path, {"fedmpi": "?"}, regions)
    with pytest.raises(Damaged, match=message):
        read(path)


def test_a_newer_format_is_refused_by_name(tmp_path, monkeypatch):
    old = write(tmp_path, snapshot(1), pieces())
    with monkeypatch.context() as future:
        future.setattr(seal, "FORMAT", 2)
        new = write(tmp_path, snapshot(2), pieces())
    with pytest.raises(Damaged, match=r"round-000002.h5 .* format 2, written by fedmpi .* up to 1: upgrade"):
        read(new)
    assert newest(tmp_path)[0] == old
    prune(tmp_path, keep=1)
    assert new.exists()
