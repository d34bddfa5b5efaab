"""What a process may not read is not taken for empty or damaged: a run would begin anew over it, or put it aside."""
from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedmpi.errors import StorageError
from fedmpi.report.results import ReportRun
from fedmpi.storage.checkpoint import delete_old_checkpoints, find_newest, write_checkpoint
from fedmpi.storage.history import History, list_parts
from fedmpi.storage.listing import find_saved_round, holds_checkpoint, list_checkpoints, match_files
from tests.storage.test_checkpoint import snapshot
from tests.storage.test_history import check, write


@pytest.fixture
def run():
    """A folder that every user may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def refused(path: Path):
    """Take from this process the right to read a path. Root may read everything, so it becomes nobody."""
    path.chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        path.chmod(0o755)


def test_checkpoints_that_cannot_be_listed_are_not_none(run):
    checkpoints = run / "checkpoints"
    checkpoints.mkdir()
    newest = write_checkpoint(checkpoints, snapshot(7), [])
    message = f"{checkpoints} cannot be listed: Permission denied; give this user the right to read it"
    with refused(checkpoints):
        for act in (lambda: list_checkpoints(checkpoints), lambda: find_saved_round(run),
                    lambda: find_newest(checkpoints), lambda: delete_old_checkpoints(checkpoints, 1)):
            with pytest.raises(StorageError) as found:
                act()
            assert str(found.value).startswith(message)
        assert holds_checkpoint(run)
    assert find_newest(checkpoints) == (newest, []) and find_saved_round(run) == 7


def test_a_checkpoint_that_may_not_be_read_is_not_damaged(run):
    """Else the run would continue from the one before it, and remove this one."""
    write_checkpoint(run, snapshot(3), [])
    newest = write_checkpoint(run, snapshot(7), [])
    with refused(newest), pytest.raises(StorageError, match=r"\(Permission denied\), though it may be whole; give this "
                                                            "user the right to read it"):
        find_newest(run)
    assert find_newest(run) == (newest, [])


def test_a_history_that_may_not_be_read_is_not_put_aside(run):
    path = run / "history.h5"
    chain = write(path, 1, 2).chain
    for closed in (path, path.with_suffix("")):
        closed.exists() or closed.mkdir()
        with refused(closed), pytest.raises(StorageError, match="Permission denied"):
            History(path).truncate(2, chain)
    check(path, 1, 2)
    assert list_parts(path) == [path]


def test_what_is_no_folder_holds_no_files(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "file.txt").touch()
    assert match_files(tmp_path / "none", "*") == match_files(tmp_path / "file", "*") == []
    assert match_files(tmp_path, "*.txt") == [tmp_path / "file.txt"]
    assert match_files(Path("a\0b"), "*") == [] and not holds_checkpoint(tmp_path)


def test_a_report_does_without_a_history_that_may_not_be_read(run):
    """One history of many must not end the report of all."""
    write(run / "history.h5", 1)
    shown = ReportRun("row", "column", 0, run)
    with refused(run / "history.h5"):
        assert shown.history == {}
    assert ReportRun("row", "column", 0, run).history["round"].tolist() == [1]
