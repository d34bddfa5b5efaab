"""The progress of runs under way, from the files that they leave."""
from __future__ import annotations

import json
import os
import re
import time

import pytest

from fedmpi.cli import app
from fedmpi.commands.status import find_runs, read_status, show_status
from fedmpi.errors import BadInput
from fedmpi.storage.lock import Lock


def status_of(*paths: str) -> list[dict]:
    return read_status(find_runs(list(paths)))


LINES = [{"round": n, "seconds": 2. * n, "memory_mib": 300. + n, **({"accuracy_mean": n / 10} if n % 2 else {})}
         for n in range(1, 6)]


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a run folder whose last round ended so many seconds ago."""
    locks = []

    def build(name: str, lines=LINES, rounds=9, held=False, ago=3., result=None, said=""):
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.yaml").write_text(f"rounds: {rounds}\n")
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.utime(folder / "metrics.jsonl", (time.time() - ago,) * 2)
        if result:
            (folder / "result.json").write_text(json.dumps(result))
        if said:
            (folder.with_name(f"{folder.name}.txt")).write_text(said)
        if held:
            locks.append(Lock(folder))
        return folder
    yield build
    for lock in locks:
        lock.release()


def test_a_run_under_way_says_how_long_it_will_take(make):
    folder = make("a", held=True)
    for number in (2, 10, 4):
        (folder / "checkpoints" / f"round-{number:06d}.h5").touch()
    (found,) = status_of(str(folder))
    since = found.pop("seconds_since_last_sign")
    assert 3 <= since < 60
    assert found == {"run": str(folder), "folder": str(folder), "state": "running", "round": 5, "rounds": 9,
                     "accuracy": .5, "reached": "50.00 %", "seconds_per_round": 2., "seconds_left": 8.,
                     "memory_mib": 305., "saved_round": 10, "note": ""}


def test_the_time_of_a_round_is_that_of_the_latest_ones(make):
    lines = [{"round": n, "seconds": 100. + n} for n in range(1, 31)]
    assert status_of(str(make("a", lines)))[0]["seconds_per_round"] == 1
    assert status_of(str(make("b", lines[:1])))[0]["seconds_per_round"] == 101
    assert status_of(str(make("c", [])))[0]["seconds_per_round"] is None
    # The latest four of the ten that count took 2 s each.
    slower = [line | {"seconds": line["seconds"] + max(0, line["round"] - 26)} for line in lines]
    assert status_of(str(make("d", slower)))[0]["seconds_per_round"] == 1.4


def test_states(make, tmp_path):
    make("stopped")
    make("silent", held=True, ago=121)
    make("slow", [{"round": 1, "seconds": 100.}], held=True, ago=499)
    make("late", [{"round": 1, "seconds": 100.}], held=True, ago=510)
    make("new", [], held=True, ago=9999)
    make("done", result={"rounds": 5, "digest": "ab", "accuracy_mean": .5})
    make("bad", said="job 7: start 1 on n1: c.yaml\nfedmpi: rank 1: no memory\njob 7: ended with code 1, why\n")
    found = {one["run"].rpartition("/")[2]: one for one in status_of(str(tmp_path))}
    assert {name: one["state"] for name, one in found.items()} == {
        "stopped": "stopped", "silent": "silent", "slow": "running", "late": "silent", "new": "running",
        "done": "finished", "bad": "failed"}
    assert found["bad"]["note"] == "fedmpi: rank 1: no memory"
    assert "no round has ended for 2 min" in found["silent"]["note"] and "log.txt" in found["silent"]["note"]
    assert found["silent"]["seconds_left"] == 8 and found["stopped"]["seconds_left"] is None


def test_runs_are_found_below_a_folder_in_natural_order(make, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("job/run-10", "job/run-9", "other"):
        make(name)
    (tmp_path / "job" / "loop").symlink_to(tmp_path)
    lines = show_status(status_of(str(tmp_path / "job"), str(tmp_path / "job" / "run-9"))).splitlines()
    assert [line.split()[0].rpartition("/")[2] for line in lines[2:4]] == ["run-9", "run-10"]
    assert lines[0].split("  ")[0] == "run" and lines[-1] == "2 stopped"
    shown = " ".join(lines[2].split()[1:])
    assert re.fullmatch(r"stopped 5/9 50\.00 % 2\.0 s - 305 \d+\.\d s ago -", shown), shown


def test_runs_of_a_job(make, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("rounds: 9\n")
    (tmp_path / "job.yaml").write_text("title: T\nconfig: c.yaml\nmeasure: accuracy_mean\n"
                                       "rows: {A: fedavg, B: local}\n")
    make("out/a/result/seed-0")
    monkeypatch.setattr("sys.argv", ["fedmpi", "status", "job.yaml", "--out", "out", "--json"])
    with pytest.raises(SystemExit) as end:
        app()
    found = json.loads(capsys.readouterr().out)
    assert end.value.code == 0
    assert [(one["state"], one["round"], one["rounds"]) for one in found] == [("stopped", 5, 9), ("waiting", 0, 9)]
    monkeypatch.setattr("sys.argv", ["fedmpi", "status", "job.yaml", "--out", "out"])
    # names are not folded
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        app()
    assert re.search(r"^B / result / seed 0 +waiting +0/9 ", capsys.readouterr().out, re.M)


def test_a_job_that_was_given_more_rounds_is_not_finished(make, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("rounds: 9\n")
    (tmp_path / "job.yaml").write_text("title: T\nconfig: c.yaml\nmeasure: accuracy_mean\nrows: {A: fedavg}\n")
    result = {"method": "FedAvg", "rounds": 5, "digest": "a", "accuracy_mean": .5}
    folder = make("out/a/result/seed-0", rounds=5, result=result)
    (folder / "log.txt").write_text("2026-01-01 00:00:00  digest 0123456789abcdef  results in out\n")
    monkeypatch.setattr("sys.argv", ["fedmpi", "status", "job.yaml", "--out", "out", "--json"])
    with pytest.raises(SystemExit):
        app()
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["state"], found["round"], found["rounds"]) == ("stopped", 5, 9)
    assert found["note"] == "digest 0123456789abcdef  results in out"
    # the settings of the folder itself ask for no more
    assert [(one["state"], one["rounds"]) for one in status_of("out")] == [("finished", 5)]


@pytest.mark.parametrize("words, said", [
    (["out/a", "--out", "x"], "--out x says where the runs of a job are, and no job file was given; leave it out"),
    (["out", "--scale", "small"], "--scale small chooses a variant of a job, and no job file was given; leave it out"),
    (["out/a/config.yaml"], "out/a/config.yaml is a file of a run, not a job; give the folder of the run, out/a")])
def test_what_belongs_to_a_job_alone_is_one_line(make, tmp_path, monkeypatch, capsys, words, said):
    make("out/a", result={"rounds": 9})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedmpi", "status", *words])
    with pytest.raises(SystemExit) as end:
        app()
    assert (end.value.code, capsys.readouterr().err) == (2, f"fedmpi: {said}\n")


SAVED = "2026-01-01 00:00:00  asked to stop: saved after round 5 of 9 in a; start again with --out a --resume auto\n"
FAILED = "2026-01-01 00:00:00  fedmpi: client 3, round 6 (rank 0 of 1 on n1): no\n2026-01-01 00:00:00  Traceback\n"


def test_how_a_run_ended_is_told_apart(make, tmp_path):
    """A run that was asked to stop, one that failed, one that was killed, and one of which nothing is known."""
    for name, log in (("asked", SAVED), ("failed", SAVED + FAILED), ("killed", SAVED), ("lost", "")):
        (make(name) / "log.txt").write_text(log)
    lock = Lock(tmp_path / "killed")
    left = json.loads(lock.path.read_text())
    lock.release()
    # A pid that no process has.
    (tmp_path / "killed" / "lock").write_text(json.dumps(left | {"pid": 2**22 + 1}))
    (tmp_path / "killed" / "checkpoints" / "round-000004.h5").touch()
    asked, failed, killed, lost = status_of(str(tmp_path))
    assert (asked["state"], asked["note"]) == ("stopped", SAVED[21:-1])
    assert (failed["state"], failed["note"]) == ("failed", "fedmpi: client 3, round 6 (rank 0 of 1 on n1): no")
    assert killed["state"] == "killed" and f"pid {2**22 + 1} on {left['host']}: that process is gone" in killed["note"]
    assert killed["note"].endswith("; --resume auto continues after round 4")
    assert lost["state"] == "stopped" and lost["note"] == (
        f"it is not known how it ended, since {tmp_path}/lost/log.txt does not say so")


def test_damage_is_a_note_and_hides_no_other_run(make, tmp_path):
    (make("a") / "config.yaml").write_text("{")
    (make("b") / "result.json").write_text("{")
    make("c")
    a, b, c = status_of(str(tmp_path))
    assert "config.yaml cannot be read" in a["note"] and a["rounds"] is None
    assert b["state"] == "failed" and "result.json is damaged" in b["note"] and "not known" in c["note"]
    assert "5/?" in show_status(status_of(str(tmp_path)))


@pytest.mark.parametrize("part", ["", "checkpoints"])
def test_a_folder_that_cannot_be_looked_into_hides_no_other_run(make, tmp_path, monkeypatch, part):
    """Root may look into any folder, so the answer of the system is made up."""
    make("job/a")
    closed = make("job/b") / part
    closed.mkdir(exist_ok=True)
    monkeypatch.setattr("fedmpi.paths.os.access", lambda path, mode: path != closed)
    a, b = status_of(str(tmp_path))
    assert a["state"] == "stopped" and set(a) == set(b) and b["state"] == "unreadable" and b["reached"] == "-"
    assert b["note"] == f"{closed} cannot be looked into: Permission denied"
    assert show_status([a, b]).endswith("1 stopped, 1 unreadable")


def test_where_there_is_no_run(tmp_path):
    with pytest.raises(BadInput, match="no run in this folder or below it; give run folders"):
        status_of(str(tmp_path))


def test_a_run_that_ended_before_it_wrote_its_configuration_is_one(tmp_path):
    """Its start was killed, or own code failed, which only the log tells; another program's log is no run."""
    for name, log in (("killed", "begun\n"), ("failed", "2026-11-30 04:00:00  fedmpi: own.py:3: ValueError: no\n"),
                      ("another", "a log of something else\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.txt").write_text(log)
    (tmp_path / "killed" / "checkpoints").mkdir()
    assert [name for name, _ in find_runs([str(tmp_path)])] == [f"{tmp_path}/failed", f"{tmp_path}/killed"]


def test_a_link_to_a_run_is_shown_and_links_are_not_followed_farther(make, tmp_path):
    make("elsewhere/run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "link").symlink_to(tmp_path / "elsewhere" / "run")
    (tmp_path / "mine" / "round").symlink_to(tmp_path / "mine")
    assert [name for name, _ in find_runs([str(tmp_path / "mine")])] == [f"{tmp_path}/mine/link"]
