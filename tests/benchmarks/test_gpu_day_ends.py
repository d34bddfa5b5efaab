"""A day with a GPU that is killed or asked to stop leaves a whole file, its notes, and no process."""
from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import pytest

from benchmarks.gpu_day import end_by_signal
from fedmpi.report import gpu_day
from tests.benchmarks.days import PATIENCE_S, alive, day, noted, step, wait_for, whats

pytestmark = pytest.mark.slow("steps that hang are waited for")


def test_a_day_that_is_killed_leaves_a_whole_file_and_no_process(tmp_path, monkeypatch):
    # Temporary files of a killed day stay.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = multiprocessing.get_context("fork").Process(
        target=day(tmp_path, step("note_one"), step("wait_for_ever")).go)
    process.start()
    notes = Path(tmp_path, gpu_day.BOOK_NAME)
    wait_for(lambda: notes.exists() and json.loads(notes.read_text())["steps"])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_for(lambda: children.read_text())
    own = int(children.read_text().split()[0])
    process.kill()
    process.join()
    found = gpu_day.load_book(tmp_path)
    assert [row["name"] for row in found["steps"]] == ["note_one"] and whats(found) == ["one"]
    wait_for(lambda: not alive(own))


@pytest.mark.parametrize("when", ["at once", "while it works"])
def test_a_day_that_is_asked_to_stop_ends_its_step(tmp_path, when):
    own = tmp_path / "pid"
    process = multiprocessing.get_context("fork").Process(target=stopped, args=(tmp_path, own, when))
    process.start()
    wait_for(lambda: noted(own))
    if when == "while it works":
        process.terminate()
    process.join(PATIENCE_S)
    assert process.exitcode == 128 + signal.SIGTERM and not alive(int(own.read_text()))


def test_a_day_that_is_asked_to_stop_keeps_the_notes_of_its_step(tmp_path):
    told = tmp_path / "told"

    def work():
        end_by_signal()
        day(tmp_path, step("note_and_hang", str(told))).go()
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    wait_for(told.exists)
    process.terminate()
    process.join(PATIENCE_S)
    found = gpu_day.load_book(tmp_path)
    assert whats(found) == ["one"]
    assert [(row["ok"], row["why"]) for row in found["steps"]] == [(False, "the day ended: asked to stop")]


def stopped(to: Path, own: Path, when: str) -> None:
    """Take a step that hangs; with "at once" the request to stop comes when its process begins."""
    end_by_signal()
    os.register_at_fork(after_in_child=lambda: own.write_text(str(os.getpid())))
    if when == "at once":
        os.register_at_fork(after_in_parent=lambda: (wait_for(lambda: noted(own)),
                                                     os.kill(os.getpid(), signal.SIGTERM)))
    day(to, step("leave_a_child")).go()


def test_a_step_whose_day_ended_before_it_began_ends(tmp_path):
    """The kernel kills a step with its day only after the step has asked for that."""
    pid = tmp_path / "pid"

    def orphan():
        day_pid = os.getpid()
        os.register_at_fork(after_in_child=lambda: (pid.write_text(str(os.getpid())),
                                                    wait_for(lambda: os.getppid() != day_pid)))
        day(tmp_path, step("wait_for_ever")).go()
    process = multiprocessing.get_context("fork").Process(target=orphan)
    process.start()
    wait_for(lambda: noted(pid))
    process.kill()
    process.join()
    wait_for(lambda: not alive(int(pid.read_text())))
