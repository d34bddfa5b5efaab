"""No row of a checkpoint is taken for another one, and the layout is that of older files."""
from __future__ import annotations

import hashlib
import json
import time
from io import FileIO

import h5py
import numpy as np
import pytest

from fedmpi import __version__
from fedmpi.json_values import flatten_settings
from fedmpi.storage import seal, sealed
from fedmpi.storage.changed_settings import (
    CHANGEABLE_SETTINGS,
    find_other_settings,
    is_free,
    warn_of_other_settings,
)
from fedmpi.storage.checkpoint import (
    CheckpointFile,
    DamagedFile,
    delete_old_checkpoints,
    is_sound_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from fedmpi.storage.listing import list_checkpoints
from tests.storage.test_checkpoint import IDS, MINE, SHARED, pieces, snapshot

TWINS = {"a": np.arange(10, dtype=np.float32).reshape(5, 2), "b": np.arange(10, 20, dtype=np.float32).reshape(5, 2)}


def reseal(path, trick, kind: str = "checkpoint"):
    """Let a trick change an open checkpoint, and seal it again."""
    about = read_seal(path)
    with h5py.File(path, "r+", locking=False) as file:
        trick(file)
    with FileIO(path, "r+") as file:
        seal.put_seal(file, kind, {name: about[name] for name in about if name not in ("rows", "size", "digest")},
                      about["rows"])


def read_seal(path, kind: str = "checkpoint") -> dict:
    with seal.open_regular(path) as file:
        return seal.read_seal(file, kind)


def swap(file, one, other):
    """Exchange two rows and their checksums; each is a field and a place."""
    for group in ("mine", "digest"):
        first, second = file[group][one[0]][one[1]], file[group][other[0]][other[1]]
        file[group][one[0]][one[1]], file[group][other[0]][other[1]] = second, first


@pytest.mark.parametrize("one, other, place", [
    (("a", 1), ("a", 3), 1), (("a", 0), ("a", 1), 0), (("a", 2), ("b", 2), 2)])
def test_a_row_does_not_pass_for_another_clients_nor_for_another_fields(tmp_path, one, other, place):
    path = write_checkpoint(tmp_path, snapshot(), pieces(mine=TWINS))
    reseal(path, lambda file: swap(file, one, other))
    for refusing in (
        lambda: read_checkpoint(path),
        lambda: CheckpointFile(path).read_rows(0, 5),
        lambda: CheckpointFile(path).read_rows(place, place + 1),
    ):
        with pytest.raises(DamagedFile, match=f"the checksum of row {place} of a is wrong; resume from another one"):
            refusing()
    assert not is_sound_checkpoint(path)
    # These rows were not changed.
    assert set(CheckpointFile(path).read_rows(4, 5)) == {"a", "b"}


@pytest.mark.parametrize("change", [
    lambda values: values.view(np.int32), lambda values: values.reshape(5, 2, 1), lambda values: values[:, :, None]])
def test_a_row_of_another_type_or_shape_does_not_pass(tmp_path, change):
    def trick(file):
        values = file["mine/a"][:]
        del file["mine/a"]
        file["mine/a"] = change(values)
    path = write_checkpoint(tmp_path, snapshot(), pieces(mine=TWINS))
    reseal(path, trick)
    with pytest.raises(DamagedFile, match="the checksum of row 0 of a is wrong"):
        CheckpointFile(path).read_rows(0, 5)


def test_the_layout_of_a_checkpoint(tmp_path):
    """A program that was written from the documentation alone would find this."""
    path = write_checkpoint(tmp_path, snapshot(), pieces())
    data = path.read_bytes()
    assert (seal.SEAL_FORMAT, seal.SEAL_BYTES, seal.DIGEST_BYTES) == (2, 4096, 16)
    assert data[:18] == b"fedmpi checkpoint " and data[50:51] == b"\n" and data[4096:4100] == b"\x89HDF"
    assert data[18:50] == hashlib.blake2b(data[50:4096], digest_size=16).hexdigest().encode()
    entries = json.loads(data[50:4096])
    assert data[50:4096] == f"\n{json.dumps(entries)}\n".encode().ljust(4046)
    assert {key: entries[key] for key in ("format", "kind", "fedmpi", "round", "accuracy", "size")} == {
        "format": 2, "kind": "checkpoint", "fedmpi": __version__, "round": 12, "accuracy": .75, "size": len(data)}
    assert [length for _, length in entries["rows"]] and sum(n for _, n in entries["rows"]) == 1400 + 40 + 5 + 5
    rest, at = hashlib.blake2b(digest_size=16), 4096
    for start, length in entries["rows"]:
        rest.update(data[at:start])
        at = start + length
    rest.update(data[at:])
    assert entries["digest"] == rest.hexdigest()
    assert entries["libraries"]["h5py"] == h5py.__version__
    assert {*entries["libraries"]} == {"python", "numpy", "h5py", "hdf5", "torch"}
    with h5py.File(path, "r") as file:
        assert [*file["mine"]] == [*MINE] and [*file["shared"]] == [*SHARED] and file["ids"][:].tolist() == [*IDS]
        assert set(file["json"]) == {"round", "config", "federation", "accuracy", "metrics", "books"}
        # A checksum covers a description of the row and then its numbers.
        for i in range(5):
            label = f"w {i} <f4 (1, 7, 10)".encode()
            expected = hashlib.blake2b(label + MINE["w"][i].tobytes(), digest_size=16).digest()
            assert file["digest/w"][i].tobytes() == expected


def test_the_same_content_gives_the_same_bytes_at_any_time(tmp_path):
    first = write_checkpoint(tmp_path, snapshot(), pieces()).read_bytes()
    # Times in HDF5 are whole seconds.
    time.sleep(1.1)
    assert write_checkpoint(tmp_path, snapshot(), pieces()).read_bytes() == first


def test_blocks_leave_no_trace(tmp_path, monkeypatch):
    path = write_checkpoint(tmp_path, snapshot(), pieces())
    whole = path.read_bytes()
    monkeypatch.setattr(seal, "HASH_BLOCK_BYTES", 7)
    # One row of w fits into a block.
    monkeypatch.setattr(sealed, "HASH_BLOCK_BYTES", 300)
    assert is_sound_checkpoint(path) and write_checkpoint(tmp_path, snapshot(), pieces()).read_bytes() == whole
    damaged = bytearray(whole)
    damaged[damaged.index(MINE["w"][4].tobytes())] ^= 1
    path.write_bytes(damaged)
    assert not is_sound_checkpoint(path)


def test_a_seal_of_too_many_fields_is_refused_and_nothing_overwritten(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(5000))
    many = [[4096, 0]] * 370
    with FileIO(path, "r+") as file:
        with pytest.raises(ValueError, match="370 fields per client are too many for the seal of a checkpoint"):
            seal.put_seal(file, "checkpoint", {}, many)
        assert path.read_bytes() == bytes(5000)
        seal.put_seal(file, "checkpoint", {}, many[:300])
    assert read_seal(path)["rows"] == many[:300]


def test_a_file_that_ends_before_a_region_is_cut_off(tmp_path):
    with FileIO(tmp_path / "a", "w+") as file:
        file.write(bytes(5000))
        with pytest.raises(seal.Flaw, match="it is cut off"):
            seal.digest_outside([[6000, 10]], file, 7000)
        assert seal.digest_outside([], file, 5000) == hashlib.blake2b(bytes(904), digest_size=16).hexdigest()


def left(folder) -> list[int]:
    return sorted(int(path.name[6:12]) for path in folder.glob("round-*.h5"))


@pytest.mark.parametrize("keep, expected", [(1, [2, 9]), (2, [2, 8, 9]), (3, [2, 7, 8, 9]), (9, [2, 5, 7, 8, 9])])
def test_the_last_ones_and_the_best_are_kept_and_nothing_else_is_removed(tmp_path, keep, expected):
    for round, accuracy in ((2, .9), (5, .3), (7, .1), (8, .5), (9, .2)):
        write_checkpoint(tmp_path, snapshot(round, score=accuracy), [])
    for name in ("round-000001.txt", "notes.part", "best.h5"):
        (tmp_path / name).write_text("a person's own")
    (tmp_path / "round-000010.h5").write_text("of no known format")
    (tmp_path / "round-000004.h5.part").write_text("half")
    delete_old_checkpoints(tmp_path, keep)
    assert left(tmp_path) == [*expected, 10]
    assert {path.name for path in tmp_path.iterdir() if not path.match("round-*.h5")} == {
        "round-000001.txt", "notes.part", "best.h5"}


def test_the_newest_is_kept_though_it_is_the_worst_or_was_not_evaluated(tmp_path):
    for worst in (.1, float("nan")):
        for round, accuracy in ((1, .9), (2, .8), (999_999, .7), (1_000_000, worst)):
            write_checkpoint(tmp_path, snapshot(round, score=accuracy), [])
        delete_old_checkpoints(tmp_path, keep=1)
        assert [path.name for path in list_checkpoints(tmp_path)] == ["round-1000000.h5", "round-000001.h5"]


def test_what_was_just_written_is_kept_beside_checkpoints_of_later_rounds(tmp_path):
    for round, accuracy in ((8, .5), (9, .4), (5, .1)):
        path = write_checkpoint(tmp_path, snapshot(round, score=accuracy), [])
    delete_old_checkpoints(tmp_path, 1, path)
    assert left(tmp_path) == [5, 8, 9]


def test_of_runs_that_were_never_evaluated_the_last_are_kept(tmp_path):
    for round in (1, 2, 3):
        write_checkpoint(tmp_path, snapshot(round, score=float("nan")), [])
    delete_old_checkpoints(tmp_path, keep=2)
    assert left(tmp_path) == [2, 3]


@pytest.mark.parametrize("key", [
    "rounds", "stop", "evaluate.every", "evaluate.after_training", "evaluate.embeddings", "evaluate.measures", "edge",
    "checkpoint", "server.hosts_clients", "faults.bad_update", "placement", "threads", "device", "engine",
    "cuda_graphs", "comm", "state", "data.root", "data.cache"])
def test_only_what_leaves_results_alone_may_change(key):
    """Settings beside them whose names begin alike may not change."""
    assert is_free(key) and is_free(key + ".more") and not is_free(key + "s")
    assert len(CHANGEABLE_SETTINGS) == 19 and not is_free(key.partition(".")[0] * 2)


def test_settings_of_the_last_bits_name_the_setting_and_both_values():
    then = snapshot(config={"threads": 1, "device": "cpu", "engine": "auto", "cuda_graphs": "on", "seed": 3})
    warnings = warn_of_other_settings(then, {"threads": 4, "device": "cuda", "engine": "vmap",
                                                   "cuda_graphs": "off", "seed": 4})
    changes = (("threads", 1, 4), ("device", "cpu", "cuda"), ("engine", "auto", "vmap"), ("cuda_graphs", "on", "off"))
    assert warnings == [f"{key} is {before} in the checkpoint and {now} now: the last bits may differ, and with them "
                        "the digest" for key, before, now in changes]


def test_an_empty_section_is_not_the_same_as_none():
    """Neither has a setting, so the section itself is compared."""
    found = find_other_settings({"model": {"name": "mine", "options": {}}}, {"model": {"name": "mine"}})
    assert found == {"model.options": [{}, "(not set)"]}


def test_nested_settings_by_dotted_path():
    settings = {"a": {"b": {"c": 1}, "d": {}}, "e": [2]}
    assert flatten_settings(settings, keep_empty=True) == {"a.b.c": 1, "a.d": {}, "e": [2]}
    assert flatten_settings(settings, "x.") == {"x.a.b.c": 1, "x.e": [2]}
