"""The history of a run: its parts grow, are cut and merged, and damage is never taken for a measure."""
from __future__ import annotations

import os
import time
from contextlib import contextmanager

import h5py
import numpy as np
import pytest

from fedmpi.errors import StorageError
from fedmpi.storage import atomic
from fedmpi.storage import history as module
from fedmpi.storage.history import History, list_parts, read_history
from fedmpi.storage.seal import DamagedFile
from tests.storage.damages import damage_at_random

# When the format was made, 200 were tried.
DAMAGES = 64


@pytest.fixture
def small_parts(monkeypatch):
    """Make parts of three rounds of `measures`."""
    monkeypatch.setattr(module, "PART_BYTES", 3 * 2 * 8 * 5)


def measures(round: int) -> dict[str, np.ndarray]:
    return {"accuracy": np.arange(5.) / 7 + round, "samples": np.arange(5) * round}


def write(path, *rounds: int) -> History:
    """Write a history, saving it after each round."""
    history = History(path)
    for round in rounds:
        history.append(round, measures(round))
        history.save()
    return history


def check(path, *rounds: int):
    found = read_history(path)
    assert found["round"].tolist() == [*rounds]
    for i, round in enumerate(rounds):
        for name, values in measures(round).items():
            np.testing.assert_array_equal(found[name][i], values)


def test_a_small_history_is_one_file_that_h5py_reads(tmp_path):
    write(tmp_path / "history.h5", 1, 2, 4)
    assert [*tmp_path.iterdir()] == [tmp_path / "history.h5"]
    with h5py.File(tmp_path / "history.h5") as file:
        assert set(file) == {"round", "accuracy", "samples"} and file["round"][:].tolist() == [1, 2, 4]


def test_a_large_history_grows_by_parts_and_only_the_last_is_written(tmp_path, small_parts):
    path = tmp_path / "history.h5"
    history, inodes = write(path, 1, 2, 3), []
    for round in range(4, 9):
        before = {part: part.stat().st_ino for part in list_parts(path)}
        history.append(round, measures(round))
        history.save()
        inodes.append([part.name for part in before if part.stat().st_ino != before[part]])
    assert [part.name for part in list_parts(path)] == ["history.h5", "000004.h5", "000007.h5"]
    assert inodes == [[], ["000004.h5"], ["000004.h5"], [], ["000007.h5"]]
    check(path, *range(1, 9))


def test_another_start_goes_on_with_the_last_part(tmp_path, small_parts):
    path = tmp_path / "history.h5"
    for rounds in ((1, 2), (3, 4, 5), (6,), (7, 8)):
        write(path, *rounds)
    assert [part.name for part in list_parts(path)] == ["history.h5", "000004.h5", "000007.h5"]
    check(path, *range(1, 9))


def test_parts_are_merged_into_one_file(tmp_path, small_parts):
    path = tmp_path / "history.h5"
    history = write(path, *range(1, 9))
    history.merge()
    assert [*tmp_path.iterdir()] == [path]
    check(path, *range(1, 9))
    with h5py.File(path) as file:
        assert set(file) == {"round", "accuracy", "samples"} and file["accuracy"].shape == (8, 5)
    history.append(9, measures(9) | {"late": np.ones(5, np.float32)})
    history.save()
    history.merge()
    assert [*tmp_path.iterdir()] == [path] and np.isnan(read_history(path)["late"][:8]).all()
    check(path, *range(1, 10))


def test_a_merge_that_is_killed_counts_no_round_twice(tmp_path, small_parts, monkeypatch):
    path = tmp_path / "history.h5"
    history = write(path, *range(1, 9))
    with monkeypatch.context() as dying:
        dying.setattr(type(path), "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            history.merge()
    assert len(list_parts(path)) == 3
    check(path, *range(1, 9))
    write(path, 9).merge()
    assert [*tmp_path.iterdir()] == [path]
    check(path, *range(1, 10))


@pytest.mark.parametrize("round", range(9))
def test_what_is_after_a_round_is_dropped(tmp_path, small_parts, round):
    path = tmp_path / "history.h5"
    history = write(path, *range(1, 9))
    assert history.truncate(round) is None
    check(path, *range(1, round + 1))
    history.append(round + 1, measures(round + 1))
    history.save()
    check(path, *range(1, round + 2))


def test_parts_that_do_not_fit_together_are_refused(tmp_path, small_parts):
    """One part has five clients, the other three."""
    path = tmp_path / "history.h5"
    write(path, 1, 2, 3, 4)
    other = list_parts(path)[1]
    module.write_part(module.Part(other, 3, {"round": np.array([4]), "accuracy": np.zeros((1, 3))}))
    with pytest.raises(DamagedFile, match="history.h5 cannot be read as a history: ValueError: all the input array"):
        read_history(path)


def test_a_part_that_is_missing_is_named(tmp_path, small_parts):
    path = tmp_path / "history.h5"
    write(path, *range(1, 9))
    list_parts(path)[1].unlink()
    with pytest.raises(DamagedFile, match="000007.h5 .*: the part before it, with the rounds up to 6, is missing"):
        read_history(path)
    history = History(path)
    said = history.truncate(8)
    assert said.endswith("kept as history-damaged.h5, history-damaged-000007.h5; a new one starts")
    # The rounds that were read before the damage do not count.
    assert list_parts(path) == [] and history.chain == ""


@pytest.mark.parametrize("which", [0, 1])
def test_no_damage_goes_unnoticed(tmp_path, small_parts, which):
    path = tmp_path / "history.h5"
    write(path, *range(1, 7))

    def read():
        return {name: (values.dtype.str, values.tolist()) for name, values in read_history(path).items()}
    refused, changed = damage_at_random(list_parts(path)[which], DAMAGES, read)
    assert refused == changed > DAMAGES // 2


def test_a_disk_that_refuses_costs_no_round(tmp_path, monkeypatch):
    path = tmp_path / "history.h5"
    history = write(path, 1)
    with monkeypatch.context() as full:
        full.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "")))
        history.append(2, measures(2))
        with pytest.raises(StorageError, match="history.h5 cannot be written: No space left on device"):
            history.save()
    check(path, 1)
    history.append(3, measures(3))
    history.save()
    check(path, 1, 2, 3)


def test_a_flush_that_is_refused_after_the_rename_doubles_no_round(tmp_path, small_parts, monkeypatch):
    path = tmp_path / "history.h5"
    write(path, 1)
    for first in (2, 5):      # the last part has room for a round; a new one is needed
        history = History(path)
        with monkeypatch.context() as failing:
            failing.setattr(atomic, "sync", lambda path: path.is_dir() and refuse(5))
            history.append(first, measures(first))
            with pytest.raises(StorageError, match="cannot be written: Input/output error"):
                history.save()
        for round in range(first + 1, first + 3):
            history.append(round, measures(round))
            history.save()
        check(path, *range(1, first + 3))


def test_damaged_histories_do_not_replace_each_other(tmp_path, small_parts):
    """A restart from a checkpoint before the damage finds a new history that the checkpoint does not know."""
    path, kept = tmp_path / "history.h5", []
    for count in range(module.MOST_DAMAGED + 2):
        write(path, *range(1, 5 + count))
        known = History(path)
        assert known.truncate(9) is None
        kept.append(spoil_byte(path, count))
        said = History(path).truncate(9, known.chain)
        number = "" if count == 0 else f"-{min(count + 1, module.MOST_DAMAGED)}"
        assert f"kept as history-damaged{number}.h5, history-damaged{number}-000004.h5" in said
    found = {file.read_bytes() for file in tmp_path.glob("history-damaged*.h5")}
    assert {*kept[:module.MOST_DAMAGED - 1], kept[-1]} <= found and kept[-2] not in found


def spoil_byte(path, offset: int) -> bytes:
    """Change the byte that is so far behind the middle of a file; return what the file then holds."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 + offset] ^= 1
    path.write_bytes(content)
    return bytes(content)


def refuse(number: int):
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/nowhere/at/all", path)])
def test_what_is_no_file_is_refused_and_stays(tmp_path, make):
    path = tmp_path / "history.h5"
    make(path)
    # Reading a link sets its time of access, unless that is later than its time of change.
    os.utime(path, (time.time() + 1000, time.time()), follow_symlinks=False)
    before = os.lstat(path)
    history = History(path)
    history.append(1, measures(1))
    for refused in (lambda: history.truncate(0), lambda: write(path, 1)):
        with pytest.raises((StorageError, DamagedFile), match="history.h5 cannot be"):
            refused()
    assert os.lstat(path) == before


@pytest.mark.parametrize("create", [
    lambda file: file.create_dataset("f", (1, 2**50), "f8", chunks=(1, 99)),
    lambda file: file.create_dataset("f", data=np.zeros((1, 2**20)), compression="gzip"),
    lambda file: file.create_dataset("f", (1,), "f8", external="/etc/passwd"),
    lambda file: file.__setitem__("f", h5py.ExternalLink("other.h5", "x"))], ids=["huge", "packed", "external", "link"])
def test_a_file_without_a_seal_holds_its_own_numbers_and_no_more(tmp_path, create):
    path = tmp_path / "history.h5"
    with h5py.File(path, "w") as file:
        file["round"] = [1]
        create(file)
    with pytest.raises(DamagedFile, match="history.h5 cannot be read as a history: f is"):
        read_history(path)


def test_a_history_that_a_checkpoint_does_not_know_is_put_aside(tmp_path, small_parts):
    """A checkpoint holds the hash of the rounds before it, because the history of another run has a valid seal, too."""
    path = tmp_path / "history.h5"
    history = write(path, 1, 2, 3)
    known = history.chain
    history.append(4, measures(4))
    history.save()
    assert len(known) == 64 and history.chain != known
    # Round 4 was measured after the checkpoint.
    for after in (3, 4):
        again = History(path)
        assert again.truncate(after, known) is None
    assert History(path).truncate(3, known) is None
    check(path, 1, 2, 3)
    said = History(path).truncate(2, known)
    assert "history.h5 is damaged (it does not hold the rounds that the checkpoint knows: it is another run's" in said
    assert said.endswith("kept as history-damaged.h5; a new one starts") and not path.exists()
    other = History(path)
    assert other.truncate(3, known) == f"{path} is not there: a new one starts, without each client's measures so far"
    assert other.chain == "" and History(path).truncate(0) is None


@pytest.mark.parametrize("act", ["save", "merge"])
def test_a_disk_that_does_not_give_back_what_was_written(tmp_path, small_parts, monkeypatch, act):
    """It is the disk that fails, as with checkpoints: `checkpoint.failure` says whether the run goes on."""
    history = write(tmp_path / "history.h5", *range(1, 8))
    history.append(8, measures(8))
    if act == "merge":
        history.save()
    seal = module.write_sealed

    @contextmanager
    def spoil(path, *rest):
        with seal(path, *rest) as writer:
            yield writer
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)[0]
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last ^ 1]))
    monkeypatch.setattr(module, "write_sealed", spoil)
    with pytest.raises(StorageError, match="the disk does not give back what was written: its checksum is wrong"):
        getattr(history, act)()


def test_a_column_that_comes_later_changes_no_hash_of_rounds_before(tmp_path):
    history = write(tmp_path / "history.h5", 1)
    known = history.chain
    history.append(2, measures(2) | {"late": np.ones(3), "count": np.array([1, 2, 3])})
    history.save()
    after = history.chain
    again = History(history.path)
    assert again.truncate(2, known) is None and again.chain == after
