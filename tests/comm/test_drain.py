"""The wait before an abort: what was printed must have been read, but the wait must end."""
from __future__ import annotations

import os

import pytest

from fedmpi.comm import launcher


class Clock:
    """A clock that only sleeping advances; at the nap with a given number something happens."""

    def __init__(self, at: int = -1, what=None):
        self.now, self.naps, self.at, self.what = 7., [], at, what

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float):
        self.naps.append(seconds)
        self.now += seconds
        if len(self.naps) == self.at:
            self.what()


@pytest.fixture
def pipe():
    read, write = os.pipe()
    with os.fdopen(read, "rb", 0) as reader, os.fdopen(write, "w") as writer:
        yield reader, writer


def test_waits_until_the_launcher_has_read(pipe, monkeypatch):
    reader, writer = pipe
    heard = []
    clock = Clock(5, lambda: heard.append(reader.read(100)))
    monkeypatch.setattr(launcher, "time", clock)
    # This is not flushed.
    writer.write("fedmpi: last words\n")
    launcher.drain(writer)
    assert heard == [b"fedmpi: last words\n"] and clock.naps == [launcher.DRAIN_LOOK_S] * 5


def test_what_was_read_in_part_is_waited_for(pipe, monkeypatch):
    reader, writer = pipe
    clock = Clock(3, lambda: reader.read(4))
    monkeypatch.setattr(launcher, "time", clock)
    writer.write("fedmpi: last words\n")
    launcher.drain(writer)
    assert sum(clock.naps) == pytest.approx(launcher.DRAIN_S, abs=.001)


def test_a_launcher_that_does_not_read_is_given_three_seconds(pipe, monkeypatch):
    reader, writer = pipe
    clock = Clock()
    monkeypatch.setattr(launcher, "time", clock)
    writer.write("nobody reads this")
    launcher.drain(writer)
    assert sum(clock.naps) == pytest.approx(3, abs=.001) and launcher.DRAIN_S == 3 and set(clock.naps) == {1e-4}
    reader.read(100)
    clock.naps.clear()
    launcher.drain(writer)
    assert not clock.naps


def test_files_and_closed_streams_are_no_trouble(tmp_path, pipe, monkeypatch):
    reader, writer = pipe
    clock = Clock(1, lambda: reader.read(100))
    monkeypatch.setattr(launcher, "time", clock)
    with open(tmp_path / "log", "w") as file:
        file.write("text")
        launcher.drain(file)
        assert (tmp_path / "log").read_text() == "text" and not clock.naps
    writer.write("text")
    # The first is closed; the second is waited for nevertheless.
    launcher.drain(file, writer)
    assert len(clock.naps) == 1
