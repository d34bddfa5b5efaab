"""A run stops by itself while there is time to save: the rule, and how the run learns when its time ends."""
from __future__ import annotations

import ast
import math
import os
import stat
import time

import pytest

from fedmpi.comm.transport import Solo
from fedmpi.context import RankContext
from fedmpi.errors import BadInput
from fedmpi.run_request import RunRequest
from fedmpi.session import lead_command
from fedmpi.slurm import job as slurm
from fedmpi.slurm.deadline import END_MARGIN_S, Deadline, find_deadline, parse_time_limit
from fedmpi.slurm.job import SlurmJob, has_ended
from tests.arrows import Tree
from tests.launch import ROOT
from tests.runs import run_alone


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("text, seconds", [
    ("90", 5400), ("1:30", 90), ("01:30:00", 5400), ("1-12", 129600), ("2-0:30", 174600), ("1-0:0:05", 86405),
    ("2-03:04:05", 183845), ("3:04:05", 11045), ("4:05", 245), ("2-03:04", 183840), ("0:1", 1), (" 7 ", 420)])
def test_time_limits_are_written_as_slurms(text, seconds):
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "1h", "-5", "1:2:3:4", "1.5", "1-", "UNLIMITED", "٣"])
def test_what_is_no_time(text):
    with pytest.raises(BadInput, match="is not a time: give minutes"):
        parse_time_limit(text)


@pytest.mark.parametrize("text", ["999999999999-00", "3661-0", "99999999999", "9" * 5000])
def test_a_time_limit_has_an_end_with_a_date(text):
    with pytest.raises(BadInput, match="is longer than ten years"):
        parse_time_limit(text)
    assert parse_time_limit("3660-0") == 3660 * 86400


def test_the_slowest_round_and_checkpoint_have_to_fit():
    left = Deadline(time.time() + 1000, "it")
    # 600 s need 750 s and the margin.
    assert left.find_reason_to_stop(1, 0) == "" and left.find_reason_to_stop(600, 0) == ""
    # The slow round is remembered.
    assert "another round and a checkpoint may take 20 min" in left.find_reason_to_stop(1, 200)
    assert Deadline(time.time() + END_MARGIN_S - 1, "it").find_reason_to_stop(0, 0).startswith("it ends in 1")
    assert Deadline().find_reason_to_stop(1e9, 1e9) == "" and not Deadline().known


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
        return [deadline.find_reason_to_stop(seconds, saving) for seconds in rounds][-1]
    assert said(needed + .25) == ""
    assert said(needed) == (f"Slurm job 7 ends in {needed} s, another round and a checkpoint may take {needed} s")
    assert said(-100).startswith("Slurm job 7 ends in 0.0 s, ")


def test_a_limit_counts_from_now_on(noon, monkeypatch):
    assert find_deadline("1:40").end == noon + 100 and find_deadline("1:40").known
    monkeypatch.setenv("SLURM_JOB_END_TIME", "5060")
    assert find_deadline("1:40").end == find_deadline(None).end == 5060 and find_deadline("0:40").end == 5040


def test_slow_rounds_are_forgotten():
    left = Deadline(time.time() + 1000, "it")
    assert left.find_reason_to_stop(900, 0)
    assert [bool(left.find_reason_to_stop(1, 0)) for _ in range(100)] == [True] * 99 + [False]


def test_the_earlier_end_counts(monkeypatch):
    assert find_deadline(None).end == math.inf
    assert find_deadline("10").what == "--time-limit 10"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 60))
    assert find_deadline("10").what == "Slurm job 7" and find_deadline("0:10").what == "--time-limit 0:10"


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Make `squeue(script)` put a fake squeue first in the path; it writes down its arguments and runs the script."""
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
    assert time.localtime(SlurmJob.from_env().find_end())[:6] == (2031, 5, 6, 7, 8, 9)
    assert asked.read_text() == "--noheader --all --states=all --jobs 7 --format %e\n"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    SlurmJob.from_env().find_end()
    assert asked.read_text() == "--noheader --all --states=all --jobs 5_2 --format %e\n"
    has_ended("9_1")
    assert asked.read_text() == "--noheader --all --states=all --jobs 9_1 --format %T\n"


def test_slurm_is_not_asked_for_what_it_told_or_outside_of_a_job(squeue, monkeypatch):
    asked = squeue("echo 2031-05-06T07:08:09")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1234567")
    assert SlurmJob.from_env().find_end() == 1234567. and not asked.exists()
    monkeypatch.setenv("SLURM_JOB_END_TIME", "Unknown")
    assert SlurmJob.from_env().find_end() > 1e9 and asked.exists()
    asked.unlink()
    monkeypatch.delenv("SLURM_JOB_ID")
    assert SlurmJob.from_env().find_end() is None and SlurmJob.from_env().name is None and not asked.exists()
    monkeypatch.setenv("SLURM_JOB_END_TIME", "99")
    # In a container the job's id may be missing.
    assert SlurmJob.from_env().find_end() == 99.


@pytest.mark.parametrize("names, expected", [
    ({"SLURM_JOB_ID": "7"}, "7"), ({}, None), ({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5"}, "7"),
    ({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "0"}, "5_0")])
def test_the_name_of_a_job(names, expected):
    assert SlurmJob.from_env(names).name == expected


def test_what_slurm_tells_a_process(monkeypatch):
    told = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2", "SLURM_CLUSTER_NAME": "alpha",
            "SLURM_RESTART_COUNT": "3", "SLURM_JOB_END_TIME": "99", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8",
            "SLURM_NTASKS_PER_NODE": "4"}
    job = SlurmJob("7", "5", "2", "alpha", 3, 99., 0, 8, 4)
    assert SlurmJob.from_env(told) == job and SlurmJob.from_env({}) == SlurmJob()
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert SlurmJob.from_env() == job


@pytest.mark.parametrize("nonsense", ["", "abc", "-1", "1.5", "9" * 20, "²", "0x1"])
def test_numbers_that_make_no_sense_count_as_not_told(nonsense):
    names = ("RESTART_COUNT", "JOB_END_TIME", "PROCID", "STEP_NUM_TASKS", "NTASKS_PER_NODE", "STEP_TASKS_PER_NODE")
    assert SlurmJob.from_env({f"SLURM_{name}": nonsense for name in names}) == SlurmJob()


@pytest.mark.parametrize("step, most", [
    ("2(x3),1", 2), ("1,5(x2)", 5), ("7", 7), ("", 4), ("some", 4), ("2(x", 4), ("9" * 10, 4)])
def test_the_most_ranks_on_a_node(step, most):
    told = {"SLURM_STEP_TASKS_PER_NODE": step, "SLURM_NTASKS_PER_NODE": "4"}
    assert SlurmJob.from_env(told).ranks_per_node == most


def test_an_end_that_has_no_date_counts_as_not_told():
    assert SlurmJob.from_env({"SLURM_JOB_END_TIME": "253402300799"}).told_end == 253402300799
    assert SlurmJob.from_env({"SLURM_JOB_END_TIME": "253402300800"}).told_end is None


def readers_of_slurms_variables(tree: Tree) -> list[str]:
    """Return the modules in which a text, other than a docstring, names one of Slurm's variables."""
    found = set()
    for module, path in tree.files.items():
        code = ast.parse(path.read_text())
        docs = {id(node.value) for node in ast.walk(code) if isinstance(node, ast.Expr)}
        found |= {module for node in ast.walk(code) if isinstance(node, ast.Constant) and id(node) not in docs
                  and isinstance(node.value, str) and "SLURM_" in node.value}
    return sorted(found)


def test_one_class_reads_slurms_variables(tmp_path):
    """Only the template of job scripts names them too, for bash."""
    assert readers_of_slurms_variables(Tree(ROOT / "fedmpi")) == ["fedmpi.slurm.job"]
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "reader.py").write_text('"""SLURM_A"""\nimport os\nx = os.environ.get("SLURM_B")\n')
    (tmp_path / "planted" / "other.py").write_text('"""SLURM_A"""\ny = "no SLURM"\n')
    assert readers_of_slurms_variables(Tree(tmp_path / "planted")) == ["planted.reader"]


def test_a_slurm_that_does_not_answer_is_not_waited_for(squeue, monkeypatch):
    """If Slurm does not answer, a job does not count as ended."""
    squeue("exec sleep 3")
    monkeypatch.setattr(slurm, "SQUEUE_TIMEOUT_S", .2)
    assert SlurmJob.from_env().find_end() is None and not has_ended("9")
    monkeypatch.setenv("PATH", "/nowhere")
    assert SlurmJob.from_env().find_end() is None and not has_ended("9")


def test_options_of_the_users_own_do_not_change_what_squeue_is_asked(squeue, monkeypatch):
    """They hide a job that runs, ask another cluster, or write times that cannot be read."""
    squeue('env | grep -E "^(SQUEUE_|SLURM_CLUSTERS|SLURM_TIME|SLURM_CONF)" | sort >&2; env | '
           'grep -qE "^(SQUEUE_|SLURM_CLUSTERS)" || echo RUNNING')
    for name in ("SQUEUE_STATES", "SQUEUE_USERS", "SQUEUE_PARTITION", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"):
        monkeypatch.setenv(name, "relative")
    monkeypatch.setenv("SLURM_CONF", "kept")
    answer = slurm.ask_squeue("9", "%T")
    assert answer.stdout == "RUNNING\n" and answer.stderr == "SLURM_CONF=kept\nSLURM_TIME_FORMAT=standard\n"


@pytest.mark.parametrize("script", ["echo Ystday 12:00", "", "exit 1"])
def test_without_an_answer_the_end_is_not_known(squeue, script):
    """A --time-limit is enough; without one the run warns of it."""
    squeue(script)
    assert SlurmJob.from_env().find_end() is None and find_deadline("10").unknown == ""
    found = find_deadline(None)
    assert not found.known and found.unknown == ("Slurm does not say when job 7 ends, so the run does not stop by "
                                                 "itself in time; give it --time-limit")


@pytest.mark.parametrize("script", ["echo N/A", "echo NONE"])
def test_a_job_without_a_limit_has_no_end(squeue, script, monkeypatch):
    squeue(script)
    assert SlurmJob.from_env().find_end() == math.inf and find_deadline(None) == Deadline(what="Slurm job 7")
    assert not find_deadline(None).known and find_deadline("10").known
    monkeypatch.delenv("SLURM_JOB_ID")
    assert find_deadline(None) == Deadline()


UNKNOWN = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"


@pytest.mark.parametrize("script, over", [
    ("echo RUNNING", False), ("echo COMPLETING", False), ("echo PENDING; echo RUNNING", False), ("exit 1", False),
    ("true", False), ("echo SUSPENDED", False), ("echo COMPLETED; echo RUNNING", False), ("echo REVOKED", False),
    ("echo PENDING", True), ("echo TIMEOUT", True), ("echo COMPLETED; echo FAILED", True), (UNKNOWN, True)])
def test_whether_a_job_has_ended(squeue, script, over):
    squeue(script)
    assert has_ended("9") == over


def test_a_run_saves_in_time_and_continues(bench):
    def go(limit, resume):
        return run_alone(bench.config, ["checkpoint.every=0"], bench.out("late"), resume, limit=limit)
    assert go("0:10", None) == 75 and [path.name for path in bench.saved("late")] == ["round-000001.h5"]
    assert "--time-limit 0:10 ends in" in (bench.out("late") / "log.txt").read_text()
    assert go("60", "auto") == 0 and bench.result("late")["digest"] == bench.straight(3)


def test_other_ranks_than_were_planned_are_refused(bench, capsys):
    """A job script passes on its plan: a process that lost the others would train alone until its time is over."""
    request = RunRequest(bench.config, [], str(bench.out("alone")), ranks=3)
    assert lead_command(Solo(), request, RankContext()) == 2 and not bench.out("alone").exists()
    assert "fedmpi: --ranks 3 were planned, but 1 started (MPI: " in capsys.readouterr().err
    one = RunRequest(bench.config, ["rounds=1"], str(bench.out("alone")), ranks=1)
    assert lead_command(Solo(), one, RankContext()) == 0


def test_a_time_limit_that_is_none_is_refused(bench, capsys):
    assert run_alone(bench.config, [], bench.out("soon"), limit="soon") == 2
    assert "--time-limit soon is not a time" in capsys.readouterr().err and not bench.out("soon").exists()
