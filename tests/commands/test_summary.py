"""The states of the runs of a job array, from the files that they leave."""
from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from fedmpi.commands.summary import make_natural_key, summarise_runs
from fedmpi.errors import BadInput

START = "job 7_{0}: start 1 on n1: configs/x.yaml seed={0}\n"
ENDED = "job 7_{0}: ended with code {1}, why\n"
LOGS = {
    0: START + "round 1\n" + ENDED.replace("{1}", "0"),
    1: START + "fedmpi: rank 1: no memory\nsrun: error: n1: task 1: Exited\n" + ENDED.replace("{1}", "1"),
    2: START + "srun: error: n1: task 2: Killed\n" + ENDED.replace("{1}", "137"),
    3: START + "fedmpi: of old\njob 7_{0}: stopped with code 75\n" + START.replace("start 1", "start 2"),
    10: START + "round 1\n"}


@pytest.fixture
def folder(tmp_path):
    for number, text in LOGS.items():
        (tmp_path / f"{number}.txt").write_text(text.replace("{0}", str(number)))
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "result.json").write_text(json.dumps({"accuracy_mean": .5, "rounds": 3, "digest": "ab" * 32}))
    (tmp_path / "summary.txt").write_text("not a run")
    return tmp_path


def test_every_run_says_what_became_of_it(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    rows = [" ".join(line.split()) for line in summarise_runs(folder).splitlines()[2:]]
    assert rows == [
        f"0 finished 1 seed=0 accuracy 50.00 % after 3 rounds, digest {'ab' * 8}",
        "1 failed 1 seed=1 fedmpi: rank 1: no memory", "2 failed 1 seed=2 n1: task 2: Killed",
        "3 unfinished 2 seed=3 start 2 on n1: configs/x.yaml seed=3",
        "10 unfinished 1 seed=10 start 1 on n1: configs/x.yaml seed=10", "1 finished, 2 failed, 2 unfinished"]


def test_the_rounds_of_one_run_are_in_memory_at_a_time(tmp_path):
    """A job array of a thousand runs makes this table inside the memory of each of its tasks."""
    def measure_peak(runs: int) -> int:
        folder = tmp_path / f"runs-{runs}"
        for number in range(runs):
            (folder / str(number)).mkdir(parents=True)
            (folder / f"{number}.txt").write_text(START.replace("{0}", str(number)))
            (folder / str(number) / "metrics.jsonl").write_text('{"round": 1, "accuracy_mean": 0.5}\n' * 2000)
        tracemalloc.start()
        try:
            assert summarise_runs(folder).endswith(f"{runs} unfinished")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    measure_peak(1)      # what is imported for a table
    assert measure_peak(12) < 2 * measure_peak(2)


def test_runs_in_folders_of_their_own_and_nothing_that_is_no_job(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("b/x/seed-10", "b/x/seed-9", "a", "b/log", "c/summary"):
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "a.txt").write_text(START.replace("{0}", "3") + ENDED.replace("{0}", "3").replace("{1}", "75"))
    rows = [" ".join(line.split()) for line in summarise_runs(str(tmp_path)).splitlines()]
    assert rows[0] == "run state starts settings result, or what it said last"
    assert rows[2:] == ["a unfinished 1 seed=3 ended with code 75, why", "b/x/seed-9 waiting 0",
                        "b/x/seed-10 waiting 0", "1 unfinished, 2 waiting"]


def test_texts_of_the_user_are_no_runs(tmp_path, monkeypatch):
    """One in which no job has spoken is a run's if its folder is there, and one that cannot be read may be."""
    monkeypatch.setenv("COLUMNS", "400")
    for name in ("notes", "requirements", "1", "2"):
        (tmp_path / f"{name}.txt").write_text("the job 3 of 4: none\n")
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(BadInput, match="no run of a job array or a sweep here"):
        summarise_runs(tmp_path)
    (tmp_path / "2").mkdir()
    (tmp_path / "3.txt").write_text("module loaded\n" + START.replace("{0}", "3"))
    (tmp_path / "4.txt").write_text("closed")
    read_text = Path.read_text

    def refuse(path, **how):
        if path.name == "4.txt":
            raise PermissionError(13, "Permission denied")
        return read_text(path, **how)
    monkeypatch.setattr(Path, "read_text", refuse)
    rows = [" ".join(line.split()) for line in summarise_runs(tmp_path).splitlines()[2:]]
    assert rows == ["2 waiting 0", "3 unfinished 1 seed=3 start 1 on n1: configs/x.yaml seed=3",
                    f"4 waiting 0 {tmp_path}/4.txt cannot be read: Permission denied", "1 unfinished, 2 waiting"]


def test_digits_that_are_no_numbers_are_sorted_as_text():
    """Python calls a superscript two a digit, and int() refuses it."""
    assert sorted(map(Path, ("10²", "9²", "²")), key=make_natural_key) == [*map(Path, ("9²", "10²", "²"))]


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no run of a job array or a sweep here"):
        summarise_runs(tmp_path)
