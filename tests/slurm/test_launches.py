"""Launches under a real srun: those that cannot work are refused with one message that names the remedy."""
from __future__ import annotations

import sys

import pytest

from tests.launch import ROOT

pytestmark = pytest.mark.slow("jobs of a real Slurm, which wait for it")
RUN = (sys.executable, "-m", "fedmpi", "run", "configs/quickstart.yaml", "--out")


@pytest.mark.parametrize("options", [["--mpi=none"], []], ids=["wrong", "default"])
def test_ranks_that_are_alone(desk, options):
    if not options and "MpiDefault              = none" not in desk.do("scontrol", "show", "config").stdout:
        pytest.skip("srun's default fits some MPI here")
    done = desk.do("srun", "--ntasks=3", *options, *RUN, "alone")
    assert done.returncode == 2 and not (desk.folder / "alone").exists()
    (message,) = [line for line in done.stderr.splitlines() if "fedmpi:" in line]
    assert "srun started 3 processes, but this one is alone" in message and "srun --mpi=pmi2" in message


def test_mpiexec_inside_a_job(desk, straight):
    """mpiexec gets the hosts, one of which has one rank more. sbatch reads its options as they were given."""
    comment = """two "words" # $(x) `y` \\ '!?;|&"""
    job = desk.submit("--nodes", 2, "--ntasks", 3, "--launcher", "mpiexec", "--option", f"--comment={comment}")
    said = desk.over(job)
    assert f"Comment={comment}" in desk.do("scontrol", "show", "job", job).stdout
    assert "3 ranks" in said and "n1    0-1" in said and "n2    2 " in said and desk.digest(job) == straight


def test_other_ranks_than_were_planned(desk):
    """The script plans four ranks on two nodes."""
    script = str(ROOT / "slurm" / "run.sbatch")
    job = desk.sbatch("--nodes=1", script)
    done = desk.do("srun", "--mpi=pmi2", "--ntasks=1", *RUN, "alone", "--ranks", 4)
    assert done.returncode == 2 and "--ranks 4 were planned, but 1 started" in done.stderr
    assert "refused: it was planned for 2 nodes and got 1" in desk.over(job) and not (desk.folder / "alone").exists()


def test_a_program_that_is_not_there_was_not_refused(desk):
    """srun's own code for it is 2, too."""
    said = desk.over(desk.submit("--nodes", 1, "--ntasks", 1, "--command", "/nowhere/fedmpi"))
    assert "code 2, but fedmpi did not refuse the run: can all nodes start /nowhere/fedmpi?" in said
    assert "ended with code 2, not started again: no round was gained" in said
    said = desk.over(desk.submit("--nodes", 1, "--ntasks", 1, "--setup", "echo rounds: x >configs/quickstart.yaml"))
    assert "fedmpi: " in said and "ended with code 2, the run was refused" in said
    assert not [*desk.folder.glob("runs/*.refused*")]


def test_a_folder_is_in_use_until_its_job_has_ended(desk, straight):
    job = desk.submit("method.name=waiting:Waiting", "--nodes", 1, "--ntasks", 1, "--restarts", 0,
                      "--option=--nodelist=n1")
    desk.waits()
    again = ("srun", "--nodelist=n3", *RUN, f"runs/quickstart-{job}", "--resume", "auto", "method.name=waiting:Waiting")
    done = desk.do(*again)
    assert done.returncode == 2 and "is in use by pid" in done.stderr and f"on n1 (job {job})" in done.stderr
    desk.kill(job, rank=0)
    desk.over(job)
    done = desk.do(*again)
    assert done.returncode == 0, done.stderr
    assert f"on n1 (job {job}) left the folder locked: its job has ended" in done.stdout
    assert desk.digest(job) == straight
