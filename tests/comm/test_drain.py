"""The wait before an abort: what was printed must have been read, but nobody is waited for without end."""
from __future__ import annotations

import os
import threading
import time

import pytest

from fedmpi.comm import launch


@pytest.fixture
def pipe():
    read, write = os.pipe()
    with os.fdopen(read, "rb", 0) as reader, os.fdopen(write, "w") as writer:
        yield reader, writer


def test_waits_until_the_launcher_has_read(pipe):
    reader, writer = pipe
    heard = []

    def late():
        time.sleep(.3)
        heard.append(reader.read(100))
    thread = threading.Thread(target=late)
    thread.start()
    writer.write("fedmpi: last words\n")
    writer.flush()
    begin = time.perf_counter()
    launch.drain(writer)
    assert time.perf_counter() - begin >= .25
    thread.join()
    assert heard == [b"fedmpi: last words\n"]


def test_the_wait_ends_only_when_it_was_read(pipe, monkeypatch):
    monkeypatch.setattr(launch, "DRAIN", .2)
    reader, writer = pipe
    writer.write("nobody reads this")
    begin = time.perf_counter()
    launch.drain(writer)
    assert time.perf_counter() - begin >= .2      # given up, not hung
    reader.read(100)
    monkeypatch.setattr(launch, "DRAIN", 3600)
    launch.drain(writer)


def test_files_and_closed_streams_are_no_trouble(tmp_path):
    with open(tmp_path / "log", "w") as file:
        file.write("text")
        launch.drain(file)
    launch.drain(file)      # closed
