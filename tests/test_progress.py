"""What rank 0 prints and logs: on a terminal, into a file, and into a pipe that was closed."""
from __future__ import annotations

import io
import os
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest

from fedmpi import cli
from fedmpi.__main__ import main
from fedmpi.progress import Progress, write_stdout
from fedmpi.text import format_duration, format_percent


@pytest.mark.parametrize("seconds, text", [
    (0, "0.0 s"), (9.94, "9.9 s"), (10, "10 s"), (99.4, "99 s"), (100, "2 min"), (150, "2 min"), (151, "3 min"),
    (5999, "100 min"), (6000, "1.7 h"), (36_000, "10.0 h")])
def test_durations(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize("value, text", [
    (0, "0.00 %"), (.12345, "12.35 %"), (1, "100.00 %"), (None, "-"), (float("nan"), "-")])
def test_percent(value, text):
    assert format_percent(value) == text


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_command_whose_outputs_are_closed_prints_into_nothing(monkeypatch):
    """`fedmpi run ... >&-`, or one that a daemon starts: Python has None in their place."""
    def work():
        assert not Progress().live
        write_stdout("lost")
        return sys.stdout.close(), sys.stderr.close()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    monkeypatch.setattr(cli, "app", work)
    main()
    assert sys.stdout.name == sys.stderr.name == os.devnull


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """Print two rounds, a note, a line that stays and another round; return the texts on stdout and in the log."""
    def printed(stdout, job=None, stderr=None):
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        if job:
            monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", stderr or Terminal())
        (tmp_path / "log.txt").write_text("before\n")
        progress = Progress(tmp_path / "log.txt")
        progress.round("one")
        progress.round("two")
        progress.note("of note\nand more")
        progress.say("stays")
        progress.say("too")
        progress.round("three")
        log = progress.log
        progress.close()
        assert log.closed and progress.log is None
        return stdout.getvalue(), (tmp_path / "log.txt").read_text().splitlines()
    return printed


def test_on_a_terminal_a_round_overwrites_the_one_before(printed):
    assert printed(Terminal())[0] == "\r\033[Kone\r\033[Ktwo\nstays\ntoo\n\r\033[Kthree"


def test_elsewhere_and_in_a_job_each_round_is_a_line(printed):
    for stdout, job in ((io.StringIO(), None), (Terminal(), "7")):
        assert printed(stdout, job)[0] == "one\ntwo\nstays\ntoo\nthree\n"


def test_under_open_mpi_4_each_round_is_a_line(printed):
    # Its ranks have a terminal as stdout, even if the output of mpirun goes into a file.
    assert printed(Terminal(), stderr=io.StringIO())[0] == "one\ntwo\nstays\ntoo\nthree\n"


def test_everything_is_logged_with_its_time(printed):
    first, *lines = printed(io.StringIO())[1]
    assert first == "before"
    stamped = [re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  (.*)", line)[1] for line in lines]
    assert stamped == ["one", "two", "of note", "and more", "stays", "too", "three"]


def test_without_a_log_nothing_is_logged(capsys):
    progress = Progress()
    progress.note("nothing")
    progress.say("something")
    progress.close()
    assert capsys.readouterr().out == "something\n"


@pytest.mark.parametrize("error, silent", [(BrokenPipeError, True), (OSError, False)])
def test_a_run_does_not_fail_for_what_it_says(monkeypatch, error, silent):
    class Refusing(io.StringIO):
        def write(self, text):
            raise error("no")
    monkeypatch.setattr(sys, "stdout", refusing := Refusing())
    write_stdout("text")
    # Nothing more is written into a closed pipe.
    assert (sys.stdout is not refusing) is silent
    if silent:
        sys.stdout.close()


def test_in_a_notebook_a_round_replaces_the_one_before(monkeypatch, capsys):
    ipython, shown = ModuleType("IPython"), []

    class Handle:
        def __init__(self, content):
            shown.append([content["text/plain"]])

        def update(self, content, raw):
            shown[-1].append(content["text/plain"])
    ipython.get_ipython = lambda: type("Shell", (), {"kernel": object()})()
    ipython.display = SimpleNamespace(display=lambda content, raw, display_id: Handle(content))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    progress = Progress()
    for text in ("one", "two"):
        progress.round(text)
    progress.say("stays")
    progress.round("three")
    assert shown == [["one", "two"], ["three"]] and capsys.readouterr().out == "stays\n"
    Progress(quiet=True).round("four")
    ipython.get_ipython = lambda: None
    Progress().round("five")
    assert len(shown) == 2 and capsys.readouterr().out == "five\n"


def test_control_characters_are_shown_and_never_sent(printed, capsys, tmp_path):
    progress = Progress(tmp_path / "other.txt")
    for tell in (progress.say, progress.note, progress.round):
        tell("a\033[2Jb\rc\x9bd\u202ee\x07")
    progress.close()
    shown = r"a\x1b[2Jb\rc\x9bd\u202ee\x07"
    assert capsys.readouterr().out == f"{shown}\n{shown}\n"
    assert [line[21:] for line in (tmp_path / "other.txt").read_text().splitlines()] == [shown] * 3


def test_a_terminal_without_the_characters_gets_escapes(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw := io.BytesIO(), encoding="ascii"))
    write_stdout("results in runs/Zürich\n")
    sys.stdout.flush()
    assert raw.getvalue() == b"results in runs/Z\\xfcrich\n"
