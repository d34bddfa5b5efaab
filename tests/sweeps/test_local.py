"""Sweeps whose runs are small fake programs: which runs start, when, with what, and what the sweep prints."""
from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from fedmpi.errors import BadInput, StorageError
from fedmpi.storage.lock import Lock
from fedmpi.sweeps import local


def test_a_measure_that_no_run_has_is_said_once_it_can_be_known(sweep):
    _, lines = sweep("", measures=("acuracy_mean",))
    (said,) = [line for line in lines if "acuracy_mean" in line]
    assert said.endswith("warning: a / one / seed 0 has no measure acuracy_mean, which a table of the job is to show; "
                         "if the job misspells it, correct it there (did you mean accuracy_mean?)")


def test_a_measure_that_a_run_has_is_no_reason_to_warn(sweep):
    assert not [line for line in sweep("", measures=("accuracy_mean",))[1] if "warning" in line]


def test_of_further_measures_only_a_misspelt_one_is_named(sweep):
    """Not every method has clusters, of which `ari` tells, and no run has the first measure."""
    _, lines = sweep("", measures=("seconds", "ari", "acuracy_mean"))
    assert [line.split(",")[0].split()[-1] for line in lines if "warning" in line] == ["seconds", "acuracy_mean"]


def log(run) -> list[str]:
    return run.folder.with_suffix(".txt").read_text().splitlines()


BOOM = "echo 'fedmpi: boom' >&2; exit 1 ;;"


@pytest.mark.parametrize("does, code, ends, started", [
    ("", 0, "3 of 3 runs finished", "abc"),
    (f"b) {BOOM}", 1, "2 of 3 runs finished, 1 failed", "abc"),
    (f"*) {BOOM}", 1, "0 of 3 runs finished, 3 failed", "abc"),
    ("b) exit 2 ;;", 1, "2 of 3 runs finished, 1 failed", "abc"),
    ("b) kill -KILL $$ ;;", 1, "2 of 3 runs finished, 1 failed", "abc"),
    # asked to stop: what is under way saves, or is ended by the signal; what waits is not started
    ("b) stop_all; exit 75 ;;", 75, "1 of 3 runs finished, 2 left: the same command continues", "ab"),
    ("b) stop_all; exit 143 ;;", 75, "1 of 3 runs finished, 2 left: the same command continues", "ab"),
    ("b) kill -TERM $PPID; while :; do sleep .01; done ;;", 75,
     "1 of 3 runs finished, 2 left: the same command continues", "ab"),
    ("b) stop_all USR1; exit 75 ;;", 75, "1 of 3 runs finished, 2 left: the same command continues", "ab"),
    ("b) stop_all USR2; exit 75 ;;", 75, "1 of 3 runs finished, 2 left: the same command continues", "ab"),
    ("b) stop_all; finish; exit ;;", 75, "2 of 3 runs finished, 1 left: the same command continues", "ab"),
    ("c) stop_all; finish; exit ;;", 0, "3 of 3 runs finished", "abc"),
    # a failure says more than what is left
    (f"a) {BOOM} b) stop_all; exit 75 ;;", 1, "0 of 3 runs finished, 1 failed, 2 left: the same command continues",
     "ab"),
    ("b) stop_all; exit 1 ;;", 1, "1 of 3 runs finished, 1 failed, 1 left: the same command continues", "ab"),
    # a run that stops by itself, since its time is over, has saved; the others go on
    ("b) exit 75 ;;", 75, "2 of 3 runs finished, 1 left: the same command continues", "abc")])
def test_the_code_says_what_became_of_all(sweep, tmp_path, does, code, ends, started):
    found, said = sweep(does)
    assert (found, [line for line in said if " runs finished" in line]) == (code, [ends])
    called = [line.split() for line in (tmp_path / "called").read_text().splitlines()]
    assert [words[words.index("--out") + 1].split("/")[-3] for words in called] == list(started)


@pytest.mark.parametrize("end", ["exit 75", "exit 138", "exit 10", "exit 143", "trap USR1; kill -USR1 $$; sleep 9"])
def test_several_ranks_are_asked_by_a_signal_after_which_no_launcher_kills_them(sweep, end):
    """Open MPI's mpiexec kills its ranks 2 s after SIGTERM."""
    code, said = sweep(f"b) stop_all TERM USR1; {end} ;;", ranks=3)
    assert (code, said[-1]) == (75, "1 of 3 runs finished, 2 left: the same command continues")


def test_what_a_sweep_says_and_keeps(sweep, plan, tmp_path):
    runs = plan()
    code, said = sweep(f"a) echo out; cat; finish ;;\nb) {BOOM}", runs)
    assert code == 1 and [line.partition(" in ")[0] for line in said] == [
        "finished a / one / seed 0: 50.00 % (best 75.00 %)", "failed b / one / seed 0: fedmpi: boom",
        "finished c / one / seed 0: 50.00 % (best 75.00 %)", "2 of 3 runs finished, 1 failed",
        "failed b / one / seed 0: fedmpi: boom", f"  log: {tmp_path}/out/b/one/seed-0.txt"]
    assert said[0].endswith("; 1 of 3, 2 waiting") and said[2].endswith("; 2 of 3, 0 waiting")
    start = f"job sweep: start 1 on {socket.gethostname()}: {runs[0].config} engine=loop method=local seed=0"
    assert log(runs[0]) == [start, "out", "job sweep: ended with code 0"]
    assert log(runs[1])[1:] == ["fedmpi: boom", "job sweep: ended with code 1"]
    assert (tmp_path / "called").read_text().splitlines()[0] == (
        f"run {runs[0].config} engine=loop method=local seed=0 --out {runs[0].folder} --resume auto")
    # The same command again starts only the runs that have failed.
    code, said = sweep("", runs)
    assert code == 0 and said[0] == "2 of 3 runs are finished already" and said[-1] == "3 of 3 runs finished"
    assert said[1] == "b / one / seed 0 failed before, and is started again: fedmpi: boom" and len(said) == 4
    assert log(runs[1])[3].startswith("job sweep: start 2 on ") and len(log(runs[0])) == 3


def test_a_path_that_is_no_text_is_written_with_an_escape(plan, tmp_path):
    """A job in a folder whose name is in Latin-1, for example."""
    run = plan()[0]._replace(config=Path(os.fsdecode(b"caf\xe9/c.yaml")))
    run.folder.parent.mkdir(parents=True)
    local.write_job_line(run, f"start 1 on n1: {run.config} seed=0")
    assert run.folder.with_suffix(".txt").read_text() == "job sweep: start 1 on n1: caf\\udce9/c.yaml seed=0\n"
    assert run.outcome()[3:5] == (1, "seed=0")


@pytest.fixture
def full(plan):
    """Return runs, of which the second one's log is on a full disk."""
    runs = plan()
    runs[1].folder.parent.mkdir(parents=True)
    runs[1].folder.with_suffix(".txt").symlink_to("/dev/full")
    return runs


def test_a_full_disk_under_the_log_of_a_run_stops_nothing(sweep, full, tmp_path):
    """Run a is under way when the disk refuses lines on b, which runs without them."""
    code, said = sweep('a) until [ -e "$here/out/b/one/seed-0/result.json" ]; do sleep .01; done; finish ;;', full, 2)
    assert code == 0 and said[-1] == "3 of 3 runs finished"
    (warned,) = [line for line in said if "warning" in line]
    assert warned == (f"warning: {tmp_path}/out/b/one/seed-0.txt cannot be written: No space left on device; free some "
                      "space or check the folder; the runs go on, and `fedmpi summary` lacks what is lost here")


def test_a_run_that_cannot_be_started_has_failed_and_the_others_go_on(sweep, plan, tmp_path):
    runs = plan()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b").touch()
    code, said = sweep("", runs)
    why = f"not started: {tmp_path}/out/b/one/seed-0.txt cannot be written: Not a directory; free some space or check "
    assert code == 1 and said[1] == f"failed b / one / seed 0: {why}the folder"
    assert said[3] == "2 of 3 runs finished, 1 failed" and said[4] == said[1]


def test_the_first_run_may_be_the_one_that_cannot_be_started(sweep, plan, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").touch()
    code, said = sweep("", plan())
    assert code == 1 and said[0].startswith("failed a / one / seed 0: not started: ")
    assert "2 of 3 runs finished, 1 failed" in said


def test_the_folder_of_the_runs_may_be_a_relative_path(sweep, plan, tmp_path, monkeypatch):
    """The first run's log is a folder, which is of no other run."""
    monkeypatch.chdir(tmp_path)
    runs = [run._replace(folder=run.folder.relative_to(tmp_path)) for run in plan()]
    (tmp_path / "out" / "a" / "one" / "seed-0.txt").mkdir(parents=True)
    code, said = sweep("", runs)
    assert code == 1 and said[0].startswith("failed a / one / seed 0: not started: ")
    assert "2 of 3 runs finished, 1 failed" in said


def test_a_folder_that_takes_no_run_ends_the_sweep(sweep, plan, tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(StorageError, match="a/one/seed-0.txt cannot be written: Not a directory"):
        sweep("")


def test_a_run_of_fewer_rounds_is_not_finished(sweep, plan, tmp_path):
    runs = plan()
    for run, rounds in zip(runs, (1, 2, 3), strict=True):
        run.folder.mkdir(parents=True)
        (run.folder / "result.json").write_text(
            json.dumps({"rounds": rounds, "accuracy_mean": .1, "accuracy_best_on_test": .2, "digest": "x"}))
    code, said = sweep("", runs)
    assert code == 0 and said[0] == "2 of 3 runs are finished already" and said[-1] == "3 of 3 runs finished"
    assert len((tmp_path / "called").read_text().splitlines()) == 1 and "/out/a/" in (tmp_path / "called").read_text()


def test_what_another_process_has_under_way_is_neither_started_nor_lost(sweep, plan, tmp_path):
    runs = plan()
    runs[1].folder.mkdir(parents=True)
    lock = Lock(runs[1].folder)
    code, said = sweep("", runs)
    assert code == 75 and said[0] == "1 of 3 runs are under way elsewhere: left alone"
    assert said[-1] == "2 of 3 runs finished, 1 left: the same command continues"
    lock.release()
    assert sweep("", runs)[0] == 0


def test_what_another_sweep_has_begun_or_finished_meanwhile_is_left_alone(sweep, plan, tmp_path):
    """While a is under way, another sweep of the same job finishes b and begins c."""
    (tmp_path / "other").mkdir()
    lock = Lock(tmp_path / "other")
    code, said = sweep(f'''a) finish; out=$here/out/b/one/seed-0; mkdir -p "$out"; finish
    mkdir -p "$here/out/c/one/seed-0"; cp {lock.path} "$here/out/c/one/seed-0" ;;''', plan("abcd"))
    lock.release()
    assert [line.partition(":")[0] for line in said] == [
        "finished a / one / seed 0", "b / one / seed 0 was finished elsewhere",
        "c / one / seed 0 is under way elsewhere", "finished d / one / seed 0", "3 of 4 runs finished, 1 left"]
    assert said[1].endswith(": accuracy 50.00 % after 2 rounds, digest abc")
    called = (tmp_path / "called").read_text().splitlines()
    assert code == 75 and [line.split("--out ")[1].split("/")[-3] for line in called] == ["a", "d"]


def test_the_board_looks_again_at_a_run_whose_turn_has_come(sweep, monkeypatch):
    """While it waited, another sweep may have begun or finished it."""
    looked = []
    monkeypatch.setattr(local.Board, "forget", lambda board, run: looked.append(run.row))
    assert sweep("")[0] == 0 and looked == ["a", "b", "c"]


def test_a_run_that_another_process_holds_by_now_has_not_failed(sweep, plan, tmp_path):
    """Another sweep has started it at the same time, and taken its lock first."""
    (tmp_path / "other").mkdir()
    lock = Lock(tmp_path / "other")
    code, said = sweep(f"b) cp {lock.path} $out; echo 'fedmpi: run folder is in use'; exit 2 ;;", plan())
    lock.release()
    assert code == 75 and said[1] == "b / one / seed 0 is under way elsewhere: left alone"
    assert said[-1] == "2 of 3 runs finished, 1 left: the same command continues"
    assert log(plan()[1])[-1] == "job sweep: stopped with code 2, since another process runs it"


def test_runs_at_once_have_gpus_of_their_own(sweep, plan, tmp_path, monkeypatch):
    """Two runs go at a time: the first two wait for each other, and so do the next two."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    (tmp_path / "started").mkdir()
    (tmp_path / "running").mkdir()
    code, said = sweep('''*) touch "$here/started/$row" "$here/running/$row"
    ls "$here/running" | wc -l >>"$here/together"
    case $row in a|b) wait_for=2 ;; *) wait_for=4 ;; esac
    until [ "$(ls "$here/started" | wc -l)" -ge $wait_for ]; do sleep .01; done
    echo "$CUDA_VISIBLE_DEVICES" >"$here/gpus.$row"
    read -r _ _ _ _ _ session _ </proc/$$/stat; [ "$session" = $$ ] || exit 1      # Ctrl-C reaches it by the sweep
    rm "$here/running/$row"; finish; exit ;;''', plan("abcd"), at_once=2)
    assert code == 0 and max((tmp_path / "together").read_text().split()) == "2"
    gpus = [(tmp_path / f"gpus.{row}").read_text().strip() for row in "abcd"]
    assert gpus[:2] == ["4,6", "5"] and sorted(gpus[2:]) == ["4,6", "5"]


def test_a_sweep_stops_every_run_that_is_under_way(sweep, plan):
    code, said = sweep('''c) until [ -e "$here/out/a/one/seed-0/ready" ] && [ -e "$here/out/b/one/seed-0/ready" ]
    do sleep .01; done; stop_all; exit 75 ;;
    *) trap 'exit 75' TERM; touch "$out/ready"; while :; do sleep .01; done ;;''', plan("abcd"), at_once=3)
    assert code == 75 and said == ["0 of 4 runs finished, 4 left: the same command continues"]


def test_a_stop_while_a_run_is_being_started_reaches_it_too(sweep, plan, monkeypatch):
    class Popen(local.subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            signal.raise_signal(signal.SIGTERM)
    monkeypatch.setattr(local.subprocess, "Popen", Popen)
    code, said = sweep("*) for i in {1..300}; do sleep .01; done; exit 1 ;;")
    assert (code, said) == (75, ["0 of 3 runs finished, 3 left: the same command continues"])


def test_ranks_need_an_mpiexec(tmp_path, monkeypatch):
    start = ["-m", "fedmpi"]
    assert local.find_launcher(1) == [sys.executable, *start]
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(BadInput, match="--ranks 2 needs an mpiexec on the PATH"):
        local.find_launcher(2)
    # The mpiexec beside this Python comes first.
    for folder in (tmp_path / "bin", tmp_path):
        folder.mkdir(exist_ok=True)
        (folder / "mpiexec").write_text("#!/bin/sh\n")
        (folder / "mpiexec").chmod(0o755)
        assert shutil.which("mpiexec") == str(tmp_path / "bin" / "mpiexec")
        assert local.find_launcher(3) == [str(folder / "mpiexec"), "-n", "3", str(tmp_path / "python"), *start]


def test_gpus_are_counted_where_none_are_named(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices = [name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:7].isdigit()]
    assert local.list_visible_gpus() == [str(i) for i in range(len(devices))]
