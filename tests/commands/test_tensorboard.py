"""Event files have every measure of every round once, whatever happened to the run."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.commands import tensorboard
from fedmpi.commands.tensorboard import list_scalars
from fedmpi.errors import BadInput
from fedmpi.storage.run_status import read_metrics
from tests.report import made

reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator",
                             reason="there is no tensorboard here: pip install tensorboard")


def write(*runs, code=0):
    done = CliRunner().invoke(app, ["tensorboard", *map(str, runs)])
    assert done.exit_code == code, done.output
    return done.output


def points(board) -> list[tuple]:
    """Return all points that an open TensorBoard has, (round, measure, value)."""
    board.Reload()
    return sorted((e.step, tag, e.value) for tag in board.Tags()["scalars"] for e in board.Scalars(tag))


def expected(lines) -> list[tuple]:
    """Return the points of lines of metrics.jsonl without the code under test: numbers except the round, by places of
    lists and keys of mappings, as TensorBoard's float32."""
    found = []
    for line in lines:
        for tag in set(line) - {"round"}:
            inner = dict(enumerate(line[tag])) if type(line[tag]) is list else line[tag]
            values = {f"{tag}/{i}": v for i, v in inner.items()} if type(inner) is dict else {tag: inner}
            found += [(line["round"], name, pytest.approx(v, rel=1e-6)) for name, v in values.items()
                      if type(v) in (int, float)]
    return sorted(found)


def test_a_run_that_was_continued_has_every_point_once(bench):
    run = bench.out("a")
    assert bench.lead("a", "rounds=2") == 0
    assert write(run) == f"tensorboard --logdir {run}\n"
    # The board stays open, as a user's does.
    board = reader.EventAccumulator(str(run / "tensorboard"))
    assert points(board) == expected(bench.metrics("a"))
    assert bench.lead("a", "rounds=3", resume="auto") == 0
    for _ in range(3):
        write(run)
        assert points(board) == expected(bench.metrics("a"))
        assert points(reader.EventAccumulator(str(run / "tensorboard"))) == expected(bench.metrics("a"))
    assert len(list((run / "tensorboard").iterdir())) == 2
    assert {step for step, *_ in points(board)} == {1, 2, 3}
    assert board.Scalars("accuracy_mean")[0].wall_time < board.Scalars("accuracy_mean")[2].wall_time


def test_points_stand_where_and_when_they_were_measured(tmp_path):
    """The run began 30 s before its metrics were written last."""
    run = made.run(tmp_path / "a", lines=[
        {"round": 2, "accuracy_mean": .25, "seconds": 10., "cluster_sizes": [3, 4], "loss": None},
        {"round": 5, "accuracy_mean": .5, "seconds": 30., "name": "x"}])
    os.utime(run / "metrics.jsonl", (1_000_030, 1_000_030))
    write(run)
    board = reader.EventAccumulator(str(run / "tensorboard"))
    assert points(board) == [(2, "accuracy_mean", .25), (2, "cluster_sizes/0", 3.), (2, "cluster_sizes/1", 4.),
                             (2, "seconds", 10.), (5, "accuracy_mean", .5), (5, "seconds", 30.)]
    assert [event.wall_time for event in board.Scalars("accuracy_mean")] == [1_000_010, 1_000_030]
    assert tensorboard.find_start_time(tmp_path / "none") == 0.


def test_several_runs_are_shown_from_the_folder_above(tmp_path):
    for name in ("x/a", "x/b/c"):
        made.run(tmp_path / name)
    assert write(tmp_path / "x/a", tmp_path / "x/b/c") == f"tensorboard --logdir {tmp_path}/x\n"
    assert (tmp_path / "x/b/c/tensorboard").is_dir() and read_metrics(tmp_path / "x/a") == []


FULL = """
import resource, sys
from fedmpi.__main__ import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
main()
"""


@pytest.mark.parametrize("limit", [10, 1000])
def test_a_full_disk_is_one_line(tmp_path, limit):
    """The disk refuses the first write, or a later one, which a thread of the library does."""
    run = made.run(tmp_path / "a", lines=[{"round": i, "accuracy_mean": .5} for i in range(50)])
    job = subprocess.run([sys.executable, "-c", FULL, str(limit), "tensorboard", str(run)], text=True,
                         capture_output=True)
    (said,) = job.stderr.splitlines()
    assert said == f"fedmpi: {run}/tensorboard cannot be written: File too large; free some space or check the folder"
    assert (job.returncode, job.stdout) == (1, "")


def test_other_errors_of_threads_are_shown(monkeypatch):
    shown = []
    monkeypatch.setattr(threading, "excepthook", lambda failure: shown.append(failure.exc_value))
    tensorboard.silence_refused_writes()
    writer = import_module("tensorboard.summary.writer.event_file_writer")._AsyncWriterThread(None, None, 1)
    for error, thread in ((OSError("full"), writer), (OSError("other"), threading.current_thread()),
                          (ValueError("else"), writer)):
        threading.excepthook(threading.ExceptHookArgs((type(error), error, None, thread)))
    assert [str(error) for error in shown] == ["other", "else"]


def test_a_missing_library_is_bad_input(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(BadInput, match=r"not installed: pip install 'fedmpi\[tensorboard\]'"):
        tensorboard.import_event_writer()


def test_what_a_line_shows():
    line = {"round": 3, "loss": None, "cluster_sizes": [4, 5], "ari": .5, "seconds": 2, "steps": {"main": 7}}
    assert list_scalars(line) == {"steps/main": 7, "cluster_sizes/0": 4, "cluster_sizes/1": 5, "ari": .5, "seconds": 2}


def test_a_run_under_way_and_what_is_no_run(bench, tmp_path):
    for name in "bc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("seed: 0\n")
    line = {"round": 1, "accuracy_mean": .5, "seconds": 1.}
    (tmp_path / "b/metrics.jsonl").write_text(json.dumps(line) + '\n{"round": 2, "accur')
    assert write(tmp_path / "b", tmp_path / "c") == f"tensorboard --logdir {tmp_path}\n"
    assert points(reader.EventAccumulator(str(tmp_path / "b/tensorboard"))) == expected([line])
    assert "is not the folder of a run" in write(tmp_path / "none", code=2)


def test_the_folder_to_show_is_one_that_exists(tmp_path, monkeypatch):
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    shown = {".": ".", "a": "a", "../y": "../y"}
    for folder, common in shown.items():
        assert tensorboard.find_common_folder([Path(folder)]) == common
    assert tensorboard.find_common_folder([Path("a"), Path("b/c")]) == "."
    assert tensorboard.find_common_folder([Path("a"), tmp_path / "x/b"]) == str(tmp_path / "x")
