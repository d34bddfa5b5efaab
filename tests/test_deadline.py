"""A run stops by itself while there is time to save: the rule, and where the end comes from."""
from __future__ import annotations

import math
import os
import stat
import time

import pytest

from fedmpi.comm.transport import Solo
from fedmpi.errors import BadInput
from fedmpi.session import lead
from fedmpi.slurm import job as slurm
from fedmpi.slurm.deadline import MARGIN, Deadline, deadline, seconds_of


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("text, seconds", [
    ("90", 5400), ("1:30", 90), ("01:30:00", 5400), ("1-12", 129600), ("2-0:30", 174600), ("1-0:0:05", 86405),
    ("2-03:04:05", 183845), ("3:04:05", 11045), ("4:05", 245), ("2-03:04", 183840), ("0:1", 1), (" 7 ", 420)])
def test_time_limits_are_written_as_slurms(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "1h", "-5", "1:2:3:4", "1.5", "1-", "UNLIMITED"])
def test_what_is_no_time(text):
    with pytest.raises(BadInput, match="is no time: give minutes"):
        seconds_of(text)


def test_the_slowest_round_and_checkpoint_have_to_fit():
    left = Deadline(time.time() + 1000, "it")
    assert left.passed(1, 0) == "" and left.passed(600, 0) == ""      # 750 s and the margin
    assert "another round and a checkpoint may take 20 min" in left.passed(1, 200)      # the slow round is remembered
    assert Deadline(time.time() + MARGIN - 1, "it").passed(0, 0).startswith("it ends in 1")
    assert Deadline().passed(1e9, 1e9) == "" and not Deadline().known


@pytest.fixture
def noon(monkeypatch):
    """Stop the clock; return its time."""
    monkeypatch.setattr(time, "time", lambda: 5000.)
    return 5000.


@pytest.mark.parametrize("rounds, saving, needed", [
    ([40], 5, 50 + 10 + 20), ([40, 8], 5, 50 + 10 + 20), ([8, 40], 0, 50 + 20), ([0], 0, 20), ([8], 30, 10 + 60 + 20)])
def test_a_run_stops_when_a_round_and_a_checkpoint_may_not_fit(noon, rounds, saving, needed):
    """A quarter more than the slowest round, twice the slowest checkpoint, and 20 s."""
    def said(left):
        deadline = Deadline(noon + left, "Slurm job 7")
        return [deadline.passed(seconds, saving) for seconds in rounds][-1]
    assert said(needed + .25) == ""
    assert said(needed) == (f"Slurm job 7 ends in {needed} s, another round and a checkpoint may take {needed} s")
    assert said(-100).startswith("Slurm job 7 ends in 0.0 s, ")


def test_a_limit_counts_from_now_on(noon, monkeypatch):
    assert deadline("1:40").end == noon + 100 and deadline("1:40").known
    monkeypatch.setenv("SLURM_JOB_END_TIME", "5060")
    assert deadline("1:40").end == deadline(None).end == 5060 and deadline("0:40").end == 5040


def test_slow_rounds_are_forgotten():
    left = Deadline(time.time() + 1000, "it")
    assert left.passed(900, 0)
    assert [bool(left.passed(1, 0)) for _ in range(100)] == [True] * 99 + [False]


def test_the_earlier_end_counts(monkeypatch):
    assert deadline(None).end == math.inf
    assert deadline("10").what == "--time-limit 10"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 60))
    assert deadline("10").what == "Slurm job 7" and deadline("0:10").what == "--time-limit 0:10"


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Put a squeue of our own first in the path: it notes its arguments and prints what it is given."""
    def squeue(script: str):
        path = tmp_path / "squeue"
        path.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\n{script}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return tmp_path / "asked"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return squeue


def test_slurm_is_asked_for_the_end(squeue, monkeypatch):
    asked = squeue("echo 2031-05-06T07:08:09")
    assert time.localtime(slurm.end_of_job())[:6] == (2031, 5, 6, 7, 8, 9)
    assert asked.read_text() == "--noheader --jobs 7 --format %e\n"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    slurm.end_of_job()
    assert asked.read_text() == "--noheader --jobs 5_2 --format %e\n"
    slurm.ended("9_1")
    assert asked.read_text() == "--noheader --jobs 9_1 --format %T\n"


def test_slurm_is_not_asked_for_what_it_told_or_outside_of_a_job(squeue, monkeypatch):
    asked = squeue("echo 2031-05-06T07:08:09")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1234567")
    assert slurm.end_of_job() == 1234567. and not asked.exists()
    monkeypatch.setenv("SLURM_JOB_END_TIME", "Unknown")
    assert slurm.end_of_job() > 1e9 and asked.exists()
    asked.unlink()
    monkeypatch.delenv("SLURM_JOB_ID")
    assert slurm.end_of_job() is None and slurm.job_id() is None and not asked.exists()
    monkeypatch.setenv("SLURM_JOB_END_TIME", "99")
    assert slurm.end_of_job() == 99.      # in a container that is told no id


@pytest.mark.parametrize("names, expected", [
    ({"SLURM_JOB_ID": "7"}, "7"), ({}, None), ({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5"}, "7"),
    ({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "0"}, "5_0")])
def test_the_id_of_a_job(monkeypatch, names, expected):
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert slurm.job_id() == expected


def test_a_slurm_that_does_not_answer_is_not_waited_for(squeue, monkeypatch):
    """A job is not taken for ended because nobody answers."""
    squeue("exec sleep 3")
    monkeypatch.setattr(slurm, "SCONTROL_TIMEOUT_S", .2)
    assert slurm.end_of_job() is None and not slurm.ended("9")
    monkeypatch.setenv("PATH", "/nowhere")
    assert slurm.end_of_job() is None and not slurm.ended("9")


@pytest.mark.parametrize("script", ["echo N/A", "echo NONE", "", "exit 1"])
def test_without_an_answer_there_is_no_end(squeue, script):
    squeue(script)
    assert slurm.end_of_job() is None


UNKNOWN = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"


@pytest.mark.parametrize("script, over", [
    ("echo RUNNING", False), ("echo COMPLETING", False), ("echo PENDING; echo RUNNING", False), ("exit 1", False),
    ("echo PENDING", True), ("true", True), (UNKNOWN, True)])
def test_whether_a_job_has_ended(squeue, script, over):
    squeue(script)
    assert slurm.ended("9") == over


def test_a_run_saves_in_time_and_continues(bench):
    def go(limit, resume):
        return lead(Solo(), bench.config, ["checkpoint.every=0"], str(bench.out("late")), resume, lambda: False, limit)
    assert go("0:10", None) == 75 and [path.name for path in bench.saved("late")] == ["round-000001.h5"]
    assert "--time-limit 0:10 ends in" in (bench.out("late") / "log.txt").read_text()
    assert go("60", "auto") == 0 and bench.result("late")["digest"] == bench.straight(3)


def test_a_time_limit_that_is_none_is_refused(bench, capsys):
    assert lead(Solo(), bench.config, [], str(bench.out("soon")), None, lambda: False, "soon") == 2
    assert "--time-limit soon is no time" in capsys.readouterr().err and not bench.out("soon").exists()
