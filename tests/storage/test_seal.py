"""Damage to checkpoints: any change of their bytes is found before they are used."""
from __future__ import annotations

import errno
import random
from pathlib import Path

import h5py
import numpy as np
import pytest

from fedmpi.errors import StorageError
from fedmpi.storage import seal
from fedmpi.storage.checkpoint import (
    DamagedFile,
    delete_old_checkpoints,
    find_newest,
    read_checkpoint,
    write_checkpoint,
)
from tests.storage.damages import DAMAGE
from tests.storage.test_checkpoint import content, pieces, run, snapshot
from tests.storage.test_rows_of_checkpoints import reseal


def places(path: Path) -> dict[str, tuple[int, int]]:
    """Return [start, stop) of every part of a checkpoint: the seal, HDF5's own data, each data set, the end."""
    size = path.stat().st_size
    start = seal.SEAL_BYTES
    found = {"seal": (0, start), "superblock": (start, start + 96), "headers": (start + 96, start + 4096),
             "end": (size - 64, size), "anywhere": (0, size)}
    with h5py.File(path, "r", locking=False) as file:
        for name in (f"{group}/{name}" for group in ("shared", "mine", "digest", "json") for name in file[group]):
            start, length = file[name].id.get_offset(), file[name].nbytes
            found |= {name: (start, start + length)} if length else {}
    return found


def survive(folder: Path):
    """Damage a checkpoint in 240 ways: either it is refused by name and the one before is used, or nothing is lost."""
    before, path = write_checkpoint(folder, snapshot(11), pieces()), write_checkpoint(folder, snapshot(12), pieces())
    good, whole, where = path.read_bytes(), content(path), sorted(places(path).items())
    refused = 0
    for seed in range(240):
        chance, data = random.Random(seed), bytearray(good)
        part, (start, stop) = where[seed % len(where)]
        damage = DAMAGE[seed // len(where) % len(DAMAGE)]
        damage(data, chance.randrange(start, stop), chance)
        path.write_bytes(data)
        try:
            assert content(path) == whole, f"seed {seed}: {damage.__name__} in {part}"
        except DamagedFile as error:
            assert str(path) in str(error) and "resume from another" in str(error)
            assert find_newest(folder)[0] == before
            refused += 1
    print(f"{refused} refused, {len(where)} parts")


def test_no_damage_goes_unseen_or_crashes(tmp_path):
    job = run("from pathlib import Path; from tests.storage.test_seal import survive; survive(Path(sys.argv[1]))",
              tmp_path)
    out, error = job.communicate(timeout=200)
    assert job.returncode == 0, error
    refused, parts = int(out.split()[0]), int(out.split()[2])
    assert refused > 200 and parts > 20


def test_the_seal_is_checked_before_hdf5_sees_a_byte(tmp_path):
    path = write_checkpoint(tmp_path, snapshot(), pieces())
    data = bytearray(path.read_bytes())
    # HDF5 would complain about this byte, the version of its superblock.
    data[seal.SEAL_BYTES + 8] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match="its checksum is wrong"):
        read_checkpoint(path)


def test_the_seal_is_checked_too(tmp_path):
    path = write_checkpoint(tmp_path, snapshot(), pieces())
    path.write_bytes(path.read_bytes().replace(b'"accuracy": 0.75', b'"accuracy": 0.95', 1))
    with pytest.raises(DamagedFile, match="the checksum of its first 4096 bytes is wrong"):
        read_checkpoint(path)


def virtual() -> h5py.VirtualLayout:
    layout = h5py.VirtualLayout((1,), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "x", (1,))
    return layout


@pytest.mark.parametrize("trick, message", [
    (lambda file: file.create_dataset("shared/evil", (2**50,), "f8", chunks=(99,)), "evil is in chunks or compressed"),
    (lambda file: file.create_dataset("shared/evil", data=np.zeros(2**20), compression="gzip"), "evil is in chunks or"),
    (lambda file: file.create_dataset("shared/evil", (2**50,), "f8"), "evil claims more bytes than the file holds"),
    (lambda file: file.create_virtual_dataset("shared/evil", virtual()), "evil is a virtual data set"),
    (lambda file: file.__setitem__("shared/evil", h5py.SoftLink("/ids")), "evil is a link and not a data set"),
    (lambda file: file.create_group("shared/evil"), "evil is not a plain data set"),
    (lambda file: file.create_dataset("shared/evil", (2,), "f8", external="/etc/passwd"), "evil is an external data"),
    (lambda file: file.__setitem__("shared/evil", h5py.ExternalLink("other.h5", "x")), "evil is a link and"),
    (lambda file: file.create_dataset("shared/evil", data="text"), "holds numbers and booleans, not object"),
    (lambda file: file.__delitem__("json/books"), "it has no json/books"),
    (lambda file: file.__delitem__("digest/w"), "it has no checksums of w"),
])
def test_a_well_sealed_file_with_strange_content_is_refused(tmp_path, trick, message):
    path = write_checkpoint(tmp_path, snapshot(), pieces())
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = 1.
    reseal(path, trick)
    with pytest.raises(DamagedFile, match=message):
        read_checkpoint(path)


def test_a_newer_format_is_refused_by_name(tmp_path, monkeypatch):
    old = write_checkpoint(tmp_path, snapshot(1), pieces())
    with monkeypatch.context() as future:
        future.setattr(seal, "SEAL_FORMAT", 3)
        new = write_checkpoint(tmp_path, snapshot(2), pieces())
    with pytest.raises(DamagedFile, match=r"round-000002.h5 .* format 3, written by fedmpi .* up to 2: upgrade"):
        read_checkpoint(new)
    assert find_newest(tmp_path)[0] == old
    delete_old_checkpoints(tmp_path, keep=1)
    assert new.exists()


@pytest.mark.parametrize("error, damaged", [
    (OSError(errno.ESTALE, "Stale file handle"), False), (OSError(errno.ENOMEM, "Cannot allocate memory"), False),
    (MemoryError(), False), (OSError(errno.EIO, "Input/output error"), True), (ValueError("no"), True)])
def test_a_file_that_cannot_be_read_now_is_not_given_up(tmp_path, monkeypatch, error, damaged):
    """The newest checkpoint may be whole if its file system does not answer for a while: none before it is taken."""
    for round in (1, 2):
        write_checkpoint(tmp_path, snapshot(round), pieces())

    def fail(path):
        if "000002" in str(path):
            raise error
        return opened(path)
    opened = seal.open_regular
    monkeypatch.setattr(seal, "open_regular", fail)
    if damaged:
        found, refused = find_newest(tmp_path)
        assert found == tmp_path / "round-000001.h5" and len(refused) == 1
    else:
        with pytest.raises(StorageError, match="round-000002.h5 cannot be read now .*, though it may be whole; start"):
            find_newest(tmp_path)
    # no other one is deleted for the sake of one that cannot be read
    delete_old_checkpoints(tmp_path, 1)
    assert len([*tmp_path.glob("round-*.h5")]) == 2
