"""The doctor's report: values, units, and the ranks that it names."""
from __future__ import annotations

import json
import os

import numpy as np
import pytest

from fedmpi.comm.transport import Solo
from fedmpi.commands import doctor, doctor_checks


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")


def test_a_check_is_a_line_that_ends_with_what_is_wrong():
    assert str(doctor.Check("disk", "3 GiB free")) == "disk         3 GiB free: ok"
    assert str(doctor.Check("disk", "full", "free some", "a\nb")) == (
        "disk         full: problem: free some\n             a\n             b")
    assert [doctor.count_words(n, "problem") for n in (0, 1, 2)] == ["0 problems", "1 problem", "2 problems"]


def test_speeds_and_sizes_have_their_units():
    """4 MiB in 2 ms are 2,097 MB/s."""
    assert doctor_checks.BYTES == 4 * 2**20 and doctor.MIN_FREE_BYTES == 2**30
    assert doctor.format_speed(.002) == "2.0 ms (2,097 MB/s)" and doctor.format_speed(1.5) == "1,500.0 ms (3 MB/s)"


def test_what_is_written_of_a_folder(tmp_path, monkeypatch):
    """Seconds become ms, bytes GiB; free space of exactly the limit counts as too little."""
    free = []
    monkeypatch.setattr(doctor, "write_trial_file", lambda path: (.25, .0123))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free[-1]}))
    for number, text, ill in ((5 * 2**30, "5.0", False), (2**30 + 1, "1.0", False), (2**30, "1.0", True)):
        free.append(number)
        trial, (folder, disk) = doctor.write_trial(tmp_path / "new")
        assert trial.parent == tmp_path and trial.name.startswith(".fedmpi-doctor-")
        assert folder == ("folder", f"{tmp_path} (for {tmp_path}/new, which does not exist yet): an HDF5 file of 4 MiB "
                          "written, verified and renamed in 250 ms (12.3 ms of it for fsync)", "", "")
        assert disk.facts == f"{text} GiB free in {tmp_path}" and bool(disk.problem) == ill
    assert str(doctor.write_trial(tmp_path)[1][0]).startswith(f"folder       {tmp_path}: an HDF5 file")


def test_a_folder_of_data_that_cannot_be_made_is_a_problem(tmp_path, monkeypatch):
    """In /proc nobody can make a folder, not even root."""
    monkeypatch.setattr(doctor.Data, "root", "/proc/a/b")
    (found,) = doctor.check_data(Solo())
    assert found.facts.startswith("/proc/a/b (data.root, made when needed)") and "set data.cache to" in found.problem
    # nor can anybody look into another's folder: what is there is not known
    real = os.stat

    def stat(path, **more):
        if "secret/" in str(path):
            raise PermissionError(13, "Permission denied")
        return real(path, **more)
    monkeypatch.setattr(os, "stat", stat)
    (tmp_path / "secret").touch()
    assert "nothing can be written there (Not a directory)" in doctor.find_why_unwritable(tmp_path / "secret" / "data")
    monkeypatch.undo()
    (tmp_path / "secret").unlink()
    monkeypatch.setattr(doctor.Data, "root", str(tmp_path / "new"))
    assert [*doctor.check_data(Solo())][0].problem == "" and not [*tmp_path.iterdir()]


class Ranks(Solo):
    """Rank 0 of three; the reports of the others are given."""
    size = 3

    def __init__(self, *others):
        super().__init__()
        self.others = [json.dumps(other).encode() for other in others]

    def gather(self, rows, counts):
        # The others' reports are texts.
        if rows.dtype == np.uint8:
            return np.concatenate([rows, *(np.frombuffer(text, np.uint8) for text in self.others)])
        # For collectives these are the seconds of a broadcast and a reduce, and whether both were right.
        if rows.dtype.kind == "f":
            return np.array([[.001, .008, 1], [.004, .002, self.right], [.002, .001, 1]])
        return np.array([rows[0], *map(len, self.others)])


def test_ranks_that_do_not_see_a_file_are_named(tmp_path):
    checks = [*doctor.check_disk(Ranks(True, True), str(tmp_path))]
    assert [c.name for c in checks] == ["folder", "disk", "shared"] and not any(c.problem for c in checks)
    *_, shared = doctor.check_disk(Ranks(False, True), str(tmp_path))
    assert shared.problem == "ranks 1 do not see it; choose a folder on a file system that all nodes share"
    *_, shared = doctor.check_disk(Ranks(False, False), str(tmp_path))
    assert shared.problem.startswith("ranks 1-2 do not") and not list(tmp_path.iterdir())
    assert [c.name for c in doctor.check_disk(Solo(), str(tmp_path))] == ["folder", "disk"]


@pytest.mark.parametrize("right", [True, False])
def test_collectives_are_as_slow_as_their_slowest_rank(monkeypatch, right):
    monkeypatch.setattr(doctor, "measure_collectives", lambda world: (.001, .008, True))
    world = Ranks(1, 1)
    world.right = right
    check, = doctor.check_collectives(world)
    assert check.facts == "broadcast of 4 MiB float32 4.0 ms (1,049 MB/s), reduce of 4 MiB int64 8.0 ms (524 MB/s)"
    assert bool(check.problem) == (not right) and [*doctor.check_collectives(Solo())] == []


def test_ranks_that_see_other_data_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.Data, "root", str(tmp_path))
    np.savez(tmp_path / "cifar10.npz", x_train=np.zeros((2, 3)), y_train=np.zeros(2, int))
    check, = doctor.check_data(Ranks(True, False))
    assert check.facts == f"{tmp_path} (data.root); without a network there are cifar10, digits"
    assert check.problem == "ranks 2 see another one; set data.root to a folder that all nodes share"
    monkeypatch.setattr(doctor.Data, "root", str(tmp_path / "none"))
    check, = doctor.check_data(Solo())
    assert check == ("data", f"{tmp_path}/none (data.root, made when needed); without a network there are digits", "",
                     "") and str(check).endswith(": ok")


def test_control_characters_of_names_are_shown():
    shown = str(doctor.Check("folder", "/a/\x1b[31mred", "no", "more \x07\nlines"))
    assert "\x1b" not in shown and "\x07" not in shown and r"\x1b[31mred" in shown and shown.count("\n") == 2
