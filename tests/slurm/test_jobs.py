"""Jobs on a real Slurm finish, restart themselves however they are interrupted, and lose nothing."""
from __future__ import annotations

import re
import signal
import time
from datetime import datetime

import pytest

from fedmpi.slurm.job import SlurmJob, has_ended
from tests.launch import ROOT

pytestmark = pytest.mark.slow("jobs of a real Slurm, which wait for it")
WAIT = "method.name=waiting:Waiting"


def test_a_run_over_two_nodes(desk, straight):
    job = desk.sbatch(ROOT / "slurm" / "run.sbatch")
    said = desk.over(job)
    assert "4 ranks" in said and "n1    0-1" in said and "n2    2-3" in said
    assert f"job {job}: ended with code 0, finished" in said and desk.digest(job) == straight
    assert desk.fact(job, "JobState") == ["COMPLETED"]


def restarted(desk, job: str) -> str:
    """Check that a job started again once and came to its end; return what it printed."""
    said = desk.over(job)
    assert f"job {job}: start 2 on" in said and f"job {job}: ended with code 0, finished" in said, said
    assert desk.fact(job, "Restarts") == ["1"], said
    return said


def test_preemption(desk, straight):
    job = desk.submit(WAIT, "device=cpu", "--nodes", 2, "--gpus", 1, "--gpu-request", "gpus-per-task")
    desk.waits()
    desk.sbatch("--partition=high", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=true")
    said = restarted(desk, job)
    assert "asked to stop: saved after round 3 of 5" in said and "continuing after round 3" in said
    # There is a rank for each GPU, and the server trains.
    assert "2 ranks" in said and desk.digest(job) == straight


def test_preemption_of_ranks_that_mpiexec_started(desk, straight):
    """As the profile one-node has it, with GPUs by --gres and a rank beside them for the server."""
    job = desk.submit(WAIT, "device=cpu", "--profile", "one-node", "--gpus", 2)
    desk.waits()
    desk.sbatch("--partition=high", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=true")
    said = restarted(desk, job)
    assert "asked to stop: saved after round 3 of 5" in said and "continuing after round 3" in said
    assert "3 ranks" in said and desk.digest(job) == straight


@pytest.mark.parametrize("launcher", ["srun", "mpiexec"])
def test_a_signal_for_the_script_alone_reaches_the_ranks(desk, straight, launcher):
    """mpiexec starts its daemons by srun; its ranks were taken for srun's, and the code was lost."""
    job = desk.submit(WAIT, "--nodes", 2, "--ntasks", 2, "--launcher", launcher)
    desk.waits()
    assert desk.do("scancel", "--batch", "--signal=USR1", job).returncode == 0
    said = restarted(desk, job)
    assert f"job {job}: stopped with code 75 and starts again" in said and "continuing after round 3" in said
    assert desk.digest(job) == straight


def test_it_stops_in_time_for_the_end_of_its_job(desk, straight):
    """The first start gets an end that is too near for a second round. Slurm does not end the job then, so it does not
    matter how long the start takes on a busy machine. What `setup` sets reaches the ranks in spite of --export=NONE."""
    soon = "export SLURM_JOB_END_TIME=$(($(date +%s) + 10))"
    setup = f"export PYTHONPATH={desk.environment['PYTHONPATH']}; [ $SLURM_RESTART_COUNT ] || {soon}"
    job = desk.submit("--setup", setup, "--signal=", "--nodes", 2, "--ntasks", 2, "--option=--export=NONE")
    said = restarted(desk, job)
    assert f"Slurm job {job} ends in" in said and "saved after round 1 of 5" in said
    assert desk.digest(job) == straight


def test_a_killed_rank(desk, straight):
    """Three ranks run on two nodes without --mpi, so the site's default is used."""
    job = desk.submit(WAIT, "--nodes", 2, "--ntasks", 3, "--mpi", "", "--setup", "export SLURM_MPI_TYPE=pmi2")
    desk.waits()
    desk.kill(job, rank=1)
    said = restarted(desk, job)
    assert "n1    0-1" in said and "n2    2 " in said and "srun: warning" not in said
    assert "continuing after round 2" in said and desk.digest(job) == straight


def test_a_node_goes_down(desk, straight):
    """The job requests GPUs by --gres, with a rank for each and one more for the server."""
    job = desk.submit(WAIT, "device=cpu", "--nodes", 2, "--gpus", 1, "--gpu-request", "gres")
    desk.waits()
    with desk.down(job):
        said = restarted(desk, job)
    assert "3 ranks" in said and "DUE TO NODE FAILURE" in said and "continuing after round" in said
    assert desk.digest(job) == straight


def test_a_rank_that_hangs(desk, straight):
    job = desk.submit(WAIT, "comm.timeout=15", "--nodes", 2, "--ntasks", 2)
    desk.waits()
    # By then ranks have told each other their state.
    time.sleep(5)
    desk.kill(job, rank=1, how=signal.SIGSTOP)
    said = restarted(desk, job)
    (message,) = [line for line in said.splitlines() if line.startswith("fedmpi: ")]
    assert re.match(r"fedmpi: rank 1 of 2 on n\d made no progress for 15 s .* client 0, round 3, order train;", message)
    assert "continuing after round 2" in said and desk.digest(job) == straight


def test_a_round_longer_than_the_notice_is_given_up(desk, straight):
    """The second job of a chain of three continues the run, and the third has nothing to do."""
    words = ("checkpoint.grace=0", "train.participation=1", "--nodes", 2, "--ntasks", 2, "--chain", 3)
    first, second, third = desk.submit(WAIT, *words).split(",")
    desk.waits()
    assert desk.do("scancel", "--batch", "--signal=USR1", first).returncode == 0
    said = desk.over(first)
    assert "the round is given up" in said
    assert re.search(rf"job {first}: stopped with code \d+ and the next job of the chain goes on", said)
    said = desk.over(second)
    assert "continuing after round 2" in said and f"job {second}: ended with code 0, finished" in said
    assert desk.over(third) == "" and desk.fact(third, "JobState") == ["COMPLETED"]
    assert desk.fact(first, "Requeue") == ["0"]


def test_a_cancelled_job_saves_and_stays_cancelled(desk, monkeypatch):
    """The node's GPUs need not be requested. While the job runs, Slurm says when it ends, whatever squeue shows to the
    user, who has set it up for short lists."""
    for name, value in (("SQUEUE_STATES", "PD"), ("SQUEUE_USERS", "nobody"), ("SQUEUE_PARTITION", "high"),
                        ("SLURM_TIME_FORMAT", "relative"), ("SLURM_CLUSTERS", "another")):
        monkeypatch.setenv(name, value)
    job = desk.submit(WAIT, "device=cpu", "--nodes", 1, "--gpus", 1, "--gpu-request", "none")
    desk.waits()
    assert SlurmJob(job_id=job).find_end() == datetime.fromisoformat(*desk.fact(job, "EndTime")).timestamp()
    assert not has_ended(job)
    desk.do("scancel", job)
    said = desk.over(job)
    assert "asked to stop: saved after round 3 of 5" in said and f"job {job}: ended with code 75, cut short" in said
    assert "2 ranks" in said and has_ended(job)
    assert desk.fact(job, "JobState") == ["CANCELLED"] and desk.fact(job, "Restarts") == ["0"]


def test_an_array_of_which_one_run_fails(desk, straight):
    lines = ["rounds=5", "seed=5", "train.lr=1e9   # diverges", "", "method=fedavg"]
    (desk.folder / "runs.txt").write_text("\n".join(lines))
    job = desk.submit("--array", "runs.txt", "--nodes", 1, "--ntasks", 1)
    desk.over(job)
    table = " ".join((desk.folder / "runs" / f"quickstart-{job}" / "summary.txt").read_text().split())
    assert table.endswith("3 finished, 1 failed")
    assert f"digest {straight[:16]} 1 finished 1 seed=5 accuracy" in table
    said = (desk.folder / "runs" / f"quickstart-{job}" / "2.txt").read_text()
    assert "lower train.lr" in said and "ended with code 1, not started again: no round was gained" in said
    assert re.search(r" 2 failed 1 train.lr=1e9 fedmpi: client \d, round 1 .* lower train.lr, .* 3 finished 1 m", table)


def test_a_rank_per_gpu_and_the_server(desk, straight):
    if "gpu:" not in desk.do("sinfo", "--noheader", "--format", "%G").stdout:
        pytest.skip("this Slurm has no nodes with GPUs")
    job = desk.submit("--gpus", 1, "--nodes", 2, "device=cpu")
    said = desk.over(job)
    assert "3 ranks" in said and "n1    0-1" in said and "n2    2 " in said
    assert desk.digest(job) == straight
