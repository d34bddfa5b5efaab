"""What sbatch is given, and what it answers, with an sbatch of the tests."""
from __future__ import annotations

import os
import sys

import pytest

from fedmpi.errors import BadInput, FedmpiError
from fedmpi.slurm import sbatch as slurm_sbatch
from fedmpi.slurm import script


def test_a_job_is_not_told_of_the_job_that_submits_it(fake_sbatch, tmp_path, monkeypatch):
    """What Slurm does not set for the new job, an array or a restart, it would take over from the environment."""
    fake_sbatch(f"env | grep ^SLURM_ | sort >{tmp_path}/told; echo 1")
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name in ("ARRAY_JOB_ID", "ARRAY_TASK_ID", "RESTART_COUNT", "PROCID", "STEP_ID", "STEP_NUM_TASKS", "STEPID",
                 "JOB_END_TIME", "CONF", "MPI_TYPE", "JOB_ID", "MEM_PER_CPU", "GPUS_ON_NODE", "CPU_BIND",
                 "DISTRIBUTION", "HINT", "NTASKS", "CLUSTERS"):
        monkeypatch.setenv(f"SLURM_{name}", "5")
    slurm_sbatch.submit_script(script.JobScript())
    assert (tmp_path / "told").read_text() == "SLURM_CLUSTERS=5\nSLURM_CONF=5\nSLURM_MPI_TYPE=5\n"


def test_outside_a_job_the_variables_are_the_user_s(fake_sbatch, tmp_path, monkeypatch):
    """Somebody has set options of srun for all jobs. What sbatch reads is left alone inside a job, too."""
    fake_sbatch(f"env | grep -e ^SLURM_CPU_BIND -e ^SBATCH_ | sort >{tmp_path}/told; echo 1")
    monkeypatch.setenv("SLURM_CPU_BIND", "none")
    monkeypatch.setenv("SBATCH_QOS", "long")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    slurm_sbatch.submit_script(script.JobScript())
    assert (tmp_path / "told").read_text() == "SBATCH_QOS=long\nSLURM_CPU_BIND=none\n"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    slurm_sbatch.submit_script(script.JobScript())
    assert (tmp_path / "told").read_text() == "SBATCH_QOS=long\n"


@pytest.mark.parametrize("said, number", [
    ("echo 'Welcome to the cluster'; echo 12", "12"), ("echo '12;c-1'; echo", "12"), ("echo 11; echo 12", "12"),
    ("echo 'Submitted 12'; echo denied >&2", "it said 'Submitted 12 denied'"), ("true", "it said 'nothing'")])
def test_what_sbatch_says_beside_the_number(fake_sbatch, said, number):
    """A filter of the site may print lines, or refuse a job and still end with 0."""
    fake_sbatch(said)
    if number == "12":
        assert slurm_sbatch.submit_script(script.JobScript())[0] == "12"
    else:
        with pytest.raises(FedmpiError, match=f"did not tell the number of a job for runs/quickstart.sbatch: {number}"):
            slurm_sbatch.submit_script(script.JobScript())


def test_two_jobs_of_one_name_that_are_submitted_at_once(fake_sbatch, tmp_path):
    """Each sbatch reads the script of its own call, even if it is slow to do so."""
    call = "from fedmpi.slurm.sbatch import *; submit_script(JobScript(settings=(\"seed=2\",)))"
    other = f"{sys.executable} -c '{call}'"
    fake_sbatch(f'[ "$INNER" ] && {{ echo 2; exit; }}\nINNER=1 {other}\ncp "$2" {tmp_path}/submitted; echo 1')
    slurm_sbatch.submit_script(script.JobScript(settings=("seed=1",)))
    assert "settings=(seed=1)" in (tmp_path / "submitted").read_text()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["quickstart.sbatch"]


def test_a_folder_with_a_percent_sign_is_refused(fake_sbatch, tmp_path, monkeypatch):
    """Slurm puts the folder before the name of the output, and then reads % in all of it."""
    fake_sbatch("echo 1")
    (tmp_path / "100%job").mkdir()
    monkeypatch.chdir(tmp_path / "100%job")
    with pytest.raises(BadInput, match="100%job: Slurm would read the % in this path .* submit from a folder without"):
        slurm_sbatch.submit_script(script.JobScript())
    assert slurm_sbatch.submit_script(script.JobScript(options=("--output=/tmp/%j.out",)))[0] == "1"
