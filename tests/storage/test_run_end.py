"""How a run ended, told from its lock and its log, and put together with what its job said."""
from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from fedmpi.storage import lock, run_end
from fedmpi.storage.lock import Lock, describe_dead_holder, is_run_alive
from fedmpi.storage.run_end import End, format_digest, format_end_by_callback, format_saved, read_end
from fedmpi.storage.run_status import read_outcome

BEGUN = "fedmpi 0.2.0: FedAvg weights=samples on digits"
SAVED = format_saved("asked to stop", 3, 9, Path("r"))
ENDED, DIGEST = format_end_by_callback(2, ValueError("x")), format_digest(64 * "a", Path("r"))
FAILED = "fedmpi: client 3, round 4 (rank 1 of 2 on n1): no"
GIVEN_UP = "fedmpi: client 3, round 4 (rank 1 of 2 on n1): asked to stop more than 90 s ago: the round is given up"
START, NOBODY = "job 7: start 1 on n1: c.yaml seed=1\n", 2**22 + 1


def write_log(folder: Path, *lines: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("rounds: 9\n")
    (folder / "log.txt").write_text("".join(f"2026-01-01 00:00:00  {line}\n" for line in lines))
    return folder


def leave_lock(folder: Path, **changed) -> str:
    """Leave the lock of a process that is gone; return the host that it names."""
    held = Lock(folder)
    left = json.loads(held.path.read_text()) | {"pid": NOBODY} | changed
    held.release()
    (folder / "lock").write_text(json.dumps(left))
    return left["host"]


@pytest.mark.parametrize("lines, end", [
    ((), End()), ((BEGUN, "round 1"), End()), ((BEGUN, SAVED), End("unfinished", SAVED)),
    ((BEGUN, FAILED, "Traceback (most recent call last):", "fedmpi.errors.FedmpiError: no"), End("failed", FAILED)),
    ((BEGUN, GIVEN_UP), End("unfinished", GIVEN_UP)), ((BEGUN, FAILED, BEGUN, "round 1"), End()),
    ((BEGUN, FAILED, BEGUN, SAVED), End("unfinished", SAVED)), ((BEGUN, SAVED, BEGUN, FAILED), End("failed", FAILED)),
    ((BEGUN, ENDED), End("unfinished", ENDED)), ((BEGUN, DIGEST), End("unfinished", DIGEST)),
    (("fedmpi 0.1.0.dev3+g12: Ditto", FAILED), End("failed", FAILED)), (("says fedmpi: nothing",), End())])
def test_the_last_words_of_the_last_start_count(tmp_path, lines, end):
    assert read_end(write_log(tmp_path / "r", *lines)) == end


def test_only_the_end_of_a_long_log_is_read(tmp_path, monkeypatch):
    folder = write_log(tmp_path / "r", FAILED, "x" * 200)
    assert read_end(folder) == End("failed", FAILED)
    monkeypatch.setattr(run_end, "LOG_END_BYTES", 100)
    assert read_end(folder) == End()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.write_bytes(b"\xff\n" * 9), lambda path: None])
def test_a_log_that_tells_nothing(tmp_path, make):
    make(tmp_path / "log.txt")
    assert read_end(tmp_path) == End()


def test_a_lock_that_was_left_says_that_its_run_was_killed(tmp_path):
    folder = write_log(tmp_path / "r", BEGUN, SAVED, BEGUN, "round 4")
    host = leave_lock(folder)
    end = read_end(folder)
    assert end.state == "killed" and end.said.startswith(f"pid {NOBODY} on {host}: that process is gone; it was killed")
    # While a process holds it, nothing has ended, whatever an earlier start said.
    (folder / "lock").unlink()
    write_log(folder, BEGUN, FAILED)
    held = Lock(folder)
    assert read_end(folder) == End() and describe_dead_holder(folder) == ""
    held.release()
    assert read_end(folder) == End("failed", FAILED) and describe_dead_holder(folder) is None


@pytest.mark.parametrize("since, end", [("2026-01-01 00:00:00", "failed"), ("2026-01-01 00:00:01", "killed"),
                                        (None, "killed")])
def test_a_worker_may_have_logged_why_it_ended_a_run_whose_lock_was_left(tmp_path, since, end):
    """A line from before the lock is of an earlier start; locks of older versions do not tell since when."""
    folder = write_log(tmp_path / "r", BEGUN, FAILED)
    leave_lock(folder, since=since)
    if since is None:
        left = json.loads((folder / "lock").read_text())
        del left["since"]
        (folder / "lock").write_text(json.dumps(left))
    found = read_end(folder)
    assert found.state == end and (found.said == FAILED) == (end == "failed")
    write_log(folder, FAILED, BEGUN)
    assert read_end(folder).state == "killed"


def test_when_the_last_start_failed_counts_not_when_an_earlier_one_did(tmp_path):
    folder = write_log(tmp_path / "r", BEGUN, FAILED)
    with open(folder / "log.txt", "a") as log:
        log.write(f"2026-01-01 00:00:02  {BEGUN}\n2026-01-01 00:00:09  {FAILED} again\n")
    leave_lock(folder, since="2026-01-01 00:00:01")
    assert read_end(folder) == End("failed", f"{FAILED} again")


def test_no_file_is_made_to_look_at_a_process_of_this_machine(tmp_path, monkeypatch):
    """A sweep on a terminal looks at its runs every second."""
    held = Lock(tmp_path)
    monkeypatch.setattr(lock.tempfile, "TemporaryFile", None)
    assert is_run_alive(tmp_path)
    held.release()
    leave_lock(tmp_path)
    assert not is_run_alive(tmp_path)


@pytest.mark.parametrize("silent, alive", [(5, True), (70, False)])
def test_a_folder_that_cannot_be_written_shows_whether_its_run_lives(tmp_path, monkeypatch, silent, alive):
    """The folder of a colleague, say: the run is on another machine, and no file can be made to read the clock."""
    leave_lock(tmp_path, processes="another machine")
    os.utime(tmp_path / "lock", (time.time() - silent,) * 2)

    def refuse(**where):
        raise PermissionError
    monkeypatch.setattr(lock.tempfile, "TemporaryFile", refuse)
    assert is_run_alive(tmp_path) == alive
    assert (describe_dead_holder(tmp_path) == "") == alive


@pytest.mark.parametrize("silent, asked, state", [(5, 0, "unfinished"), (30, 1, "killed"), (90, 0, "killed")])
def test_slurm_is_asked_once_and_only_of_a_run_that_may_live_or_not(tmp_path, monkeypatch, silent, asked, state):
    """A task of a large array looks at all runs when it ends, and most of them go on, on other nodes."""
    folder, calls = write_log(tmp_path / "r", BEGUN), tmp_path / "calls"
    leave_lock(folder, processes="another machine", job="5", cluster="alpha")
    os.utime(folder / "lock", (time.time() - silent,) * 2)
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho >>{calls}\necho COMPLETED\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "alpha")
    monkeypatch.setenv("SLURM_JOB_ID", "6")
    assert read_outcome(folder).state == state
    assert (len(calls.read_text()) if calls.exists() else 0) == asked
    # Who starts runs, or wants the folder for one, always asks.
    assert not is_run_alive(folder)
    held = Lock(folder)
    assert held.taken_over.endswith("its job has ended")
    held.release()


@pytest.mark.parametrize("printed, left, log, state, said", [
    # What the job printed, and what the lock and the log say.
    (START, False, FAILED, "unfinished", "start 1 on n1: c.yaml seed=1"),
    (START + "round 1\n", False, FAILED, "failed", FAILED),
    (START + "round 1\n", True, "round 1", "killed", f"pid {NOBODY}"),
    (START + "round 1\njob 7: ended with code -9\n", True, "round 1", "killed", f"pid {NOBODY}"),
    (START + "srun: error: n1: Killed\njob 7: ended with code 137\n", True, "round 1", "killed", "n1: Killed"),
    (START + "srun: error: n1: Killed\njob 7: stopped with code 137 and starts again\n", True, "round 1", "killed",
     "n1: Killed; its job stopped with code 137 and starts again"),
    (START + "fedmpi: bad.yaml: no\njob 7: ended with code 2\n", True, "round 1", "failed", "fedmpi: bad.yaml: no"),
    (START + "round 1\njob 7: stopped with code 75 and starts again\n", False, SAVED, "unfinished",
     "stopped with code 75 and starts again"),
    (START + "round 1\n", False, SAVED, "unfinished", SAVED)])
def test_what_the_job_says_and_what_the_folder_tells(tmp_path, printed, left, log, state, said):
    folder = write_log(tmp_path / "r", BEGUN, log)
    (tmp_path / "r.txt").write_text(printed)
    if left:
        leave_lock(folder)
    found = read_outcome(folder)
    assert (found.state, found.said[:len(said)]) == (state, said)


NOISE = "srun: error: n1: task 0: Exited with exit code 75\n"


@pytest.mark.parametrize("printed, log, state, said", [
    # The launcher's code is not the run's: Open MPI says 1, and srun may say 143.
    (f"{SAVED}\n{NOISE}job 7: ended with code 143, cut short\n", SAVED, "unfinished", "ended with code 143, cut short"),
    (f"{GIVEN_UP}\njob 7: ended with code 1, why\n", GIVEN_UP, "unfinished", GIVEN_UP),
    # srun complains of 75.
    (f"{SAVED}\n{NOISE}job 7: stopped with code 75 and starts again\n", SAVED, "unfinished", "stopped with code 75"),
    (f"{SAVED}\n{NOISE}", SAVED, "unfinished", SAVED),
    # The log has the end of an earlier start.
    (f"{NOISE}job 7: ended with code 143, why\n", SAVED, "failed", NOISE[13:-1])])
def test_a_run_that_saved_has_not_failed(tmp_path, printed, log, state, said):
    folder = write_log(tmp_path / "r", BEGUN, log)
    (tmp_path / "r.txt").write_text(START + printed)
    found = read_outcome(folder)
    assert (found.state, found.said[:len(said)]) == (state, said)


@pytest.mark.parametrize("log, state", [((SAVED,), "unfinished"), ((f"{FAILED}, now otherwise",), "failed"),
                                        (("round 5",), "killed")])
@pytest.mark.parametrize("later", [True, False])
def test_a_start_by_hand_after_a_job_that_failed(tmp_path, log, state, later):
    """The job does not know of it, but the log does; unless the log was written before the job failed."""
    folder = write_log(tmp_path / "r", BEGUN, FAILED, BEGUN, *log)
    (tmp_path / "r.txt").write_text(f"{START}{FAILED}\njob 7: ended with code 1, why\n")
    if state == "killed":
        leave_lock(folder)
    os.utime(folder / "log.txt", (time.time() + (9 if later else -9),) * 2)
    found = read_outcome(folder)
    if later:
        assert found.state == state and found.said.startswith(read_end(folder).said)
    else:
        assert (found.state, found.said) == ("failed", FAILED)
    assert (found.starts, found.settings) == (1, "seed=1")


def test_a_start_by_hand_that_goes_on_has_not_failed(tmp_path):
    folder = write_log(tmp_path / "r", BEGUN, FAILED, BEGUN, "round 5")
    held = Lock(folder)
    failed, going = f"{FAILED}\njob 7: ended with code 1, why\n", "round 5\n"
    for last, said in ((failed, ""), (going, "start 1 on n1: c.yaml seed=1")):
        (tmp_path / "r.txt").write_text(START + last)
        os.utime(folder / "log.txt", (time.time() + 9,) * 2)
        found = read_outcome(folder)
        assert (found.state, found.said) == ("unfinished", said)
    held.release()


REFUSED = START.replace("7", "8") + "fedmpi: run folder r is in use by pid 1 on n1, last sign of life 3 s ago; wait\n"


def test_a_second_job_does_not_make_a_live_run_a_failed_one(tmp_path):
    folder = write_log(tmp_path / "r", BEGUN, "round 1")
    log = tmp_path / "r.txt"
    held = Lock(folder)
    # Scripts of before said this.
    log.write_text(START + "round 1\n" + REFUSED + "job 8: ended with code 2, the run was refused\n")
    found = read_outcome(folder)
    assert (found.state, found.said) == ("unfinished", "ended with code 2, the run was refused")
    log.write_text(START + "round 1\n" + REFUSED + "job 8: stopped with code 2: another job runs it\n")
    found = read_outcome(folder)
    assert (found.state, found.starts, found.said) == ("unfinished", 1, "start 1 on n1: c.yaml seed=1")
    held.release()
    with log.open("a") as file:
        file.write("round 2\nfedmpi: rank 1: no\njob 7: ended with code 1, why\n")
    found = read_outcome(folder)
    assert (found.state, found.starts, found.said) == ("failed", 1, "fedmpi: rank 1: no")


@pytest.mark.parametrize("ended, state, said", [
    ("", "killed", "that process is gone"),
    ("fedmpi: rank 1: no\njob sweep: ended with code 1\n", "failed", "fedmpi: rank 1: no")])
def test_of_two_sweeps_at_once_the_one_that_was_refused_hides_no_reason(tmp_path, ended, state, said):
    """Both call themselves `sweep`, so which of the two starts was refused is not known, nor does it matter."""
    folder = write_log(tmp_path / "r", BEGUN, "round 1")
    start, refused = START.replace("job 7", "job sweep"), REFUSED.replace("job 8", "job sweep")
    (tmp_path / "r.txt").write_text(
        f"{start}{refused}job sweep: stopped with code 2, since another process runs it\nround 1\n{ended}")
    if not ended:
        leave_lock(folder)
    found = read_outcome(folder)
    assert (found.state, found.starts) == (state, 1) and said in found.said, found


def test_a_run_that_has_left_its_settings_alone_is_not_waiting(tmp_path):
    found = read_outcome(write_log(tmp_path / "r"))
    assert (found.state, found.said) == ("unfinished", "")
