"""Files are complete or absent: what is written, in which order it becomes durable, and what is never replaced."""
from __future__ import annotations

import errno
import io
import os
import socket
import stat

import pytest

from fedmpi.errors import StorageError
from fedmpi.storage.atomic import atomic, describe_reason, report_failed_writes, sync
from fedmpi.storage.hdf5_sink import Sink


def pipe(path):
    os.mkfifo(path)


def device(path):
    """Make a link to a device that is like /dev/full; no test names a real one."""
    node = path.with_name("node")
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    except PermissionError:
        pytest.skip("only root can make a device, and not in every container")
    path.symlink_to(node)


def listening(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize("make", [pipe, device, listening])
def test_what_is_no_regular_file_is_never_replaced(tmp_path, monkeypatch, make):
    # Names of sockets must be short.
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "out")
    before = {path.name: (os.lstat(path).st_mode, os.lstat(path).st_rdev) for path in tmp_path.iterdir()}
    with pytest.raises(StorageError, match="out cannot be written: it is not a regular file; give the name of one"), \
            atomic(tmp_path / "out"):
        raise AssertionError("nothing is to be written")
    assert {path.name: (os.lstat(path).st_mode, os.lstat(path).st_rdev) for path in tmp_path.iterdir()} == before


def test_a_folder_is_not_replaced_either(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(StorageError, match="out cannot be written: Is a directory"), atomic(tmp_path / "out") as part:
        part.write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_that_is_there_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("first and longer", "second"):
        with atomic(path) as part:
            assert part == tmp_path / "a.txt.part"
            part.write_text(text)
            assert not path.exists() or path.read_text() == "first and longer"
        assert path.read_text() == text and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("error, seen", [(KeyError, KeyError), (KeyboardInterrupt, KeyboardInterrupt),
                                         (OSError, StorageError)])
def test_a_failure_leaves_what_was_there(tmp_path, error, seen):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(seen), atomic(path) as part:
        part.write_text("half")
        raise error("some cause")
    assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("make", [
    os.mkfifo, lambda part: part.symlink_to("victim"), lambda part: part.symlink_to("/dev/full"),
    lambda part: part.write_text("left")], ids=["pipe", "link", "device", "file"])
def test_what_has_the_temporary_name_is_removed_and_not_written_to(tmp_path, make):
    (tmp_path / "victim").write_text("a file of the user")
    make(tmp_path / "a.txt.part")
    with atomic(tmp_path / "a.txt") as part:
        part.write_text("new")
    assert (tmp_path / "a.txt").read_text() == "new" and (tmp_path / "victim").read_text() == "a file of the user"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "victim"]


def test_a_folder_of_the_temporary_name_is_named(tmp_path):
    (tmp_path / "a.txt.part").mkdir()
    with pytest.raises(StorageError, match="a.txt.part cannot be written: Is a directory; remove what is in its place"
                       ), atomic(tmp_path / "a.txt"):
        pass


def test_a_name_that_is_too_long_is_said_to_be(tmp_path):
    with pytest.raises(StorageError, match="cannot be written: File name too long; give a shorter name"), \
            atomic(tmp_path / ("a" * 300)):
        pass


def test_what_the_disk_does_not_take_is_not_given_its_name(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def refused(descriptor):
        raise OSError(errno.EIO, "as a broken disk says")
    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(StorageError, match=r"a.txt cannot be written: Input/output error; free some space or check the "
                                           r"folder$") as caught, atomic(path) as part:
        part.write_text("new")
    assert isinstance(caught.value.__cause__, OSError)
    assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]


def test_a_descriptor_is_closed_though_the_disk_refuses(tmp_path, monkeypatch):
    closed, close = [], os.close

    def refused(descriptor):
        raise OSError(errno.EIO, "")
    monkeypatch.setattr(os, "fsync", refused)
    monkeypatch.setattr(os, "close", lambda descriptor: closed.append(descriptor) or close(descriptor))
    with pytest.raises(OSError):
        sync(tmp_path)
    assert len(closed) == 1


def test_only_the_operating_systems_refusals_become_storage_errors():
    with pytest.raises(ValueError), report_failed_writes("x"):
        raise ValueError
    with pytest.raises(StorageError,
                       match="^x cannot be written: Disk quota exceeded; free"), report_failed_writes("x"):
        raise OSError(errno.EDQUOT, "some other words")


def test_reasons_are_one_line():
    assert describe_reason(OSError(errno.ENOSPC, "addresses, times")) == "No space left on device"
    assert describe_reason(OSError("two\n  lines")) == "OSError: two lines"
    assert describe_reason(KeyError("a  b")) == "KeyError: 'a b'"


def test_a_sink_keeps_the_first_refusal_and_hides_it(tmp_path, monkeypatch):
    """The disk takes at most three bytes at once, and seven in all."""
    class Disk(io.FileIO):
        def write(self, data):
            if self.tell() >= 7:
                raise OSError(errno.ENOSPC, "full")
            return super().write(data[:min(3, 7 - self.tell())])

        def truncate(self, size=None):
            raise OSError(errno.EIO, "broken")

    class Small(Sink, Disk):
        pass
    with Small(tmp_path / "a") as sink:
        assert sink.write(b"123456") == 6
        sink.check()
        assert sink.write(memoryview(b"789")) == 3 and sink.write(b"more") == 4
        sink.truncate(2)
        for _ in range(2):
            with pytest.raises(OSError) as caught:
                sink.check()
            assert caught.value.errno == errno.ENOSPC
    assert (tmp_path / "a").read_bytes() == b"1234567"


def test_a_sink_can_be_written_anew_and_cut(tmp_path):
    (tmp_path / "a").write_text("old and longer")
    with Sink(tmp_path / "a") as sink:
        sink.write(b"0123456789")
        sink.truncate(4)
        sink.seek(0)
        assert sink.read() == b"0123"
        sink.check()
    assert (tmp_path / "a").read_bytes() == b"0123"
