"""The Slurm job that this process belongs to, and what Slurm answers about jobs.

`SlurmJob.from_env` is the only reader of Slurm's variables in the package; a test holds that."""
from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

# Slurm's controller has so long to answer.
SQUEUE_TIMEOUT_S = 20
# No process of a job in one of these states is alive. A job that waits has been put back into the queue.
ENDED_STATES = frozenset((
    "PENDING", "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "TIMEOUT"))
# What squeue says in place of an end.
NO_LIMIT = ("N/A", "NONE")
# Slurm's variables that a user or a site sets: a job that is submitted from inside a job gets them, too. All others are
# the outer job's. Those that Slurm does not set anew would stay, and srun would read the outer job's memory, GPUs and
# binding as its options.
NOT_OF_A_JOB = frozenset((
    "SLURM_CLUSTERS", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_DEBUG_FLAGS", "SLURM_EXIT_ERROR", "SLURM_JWT",
    "SLURM_MPI_TYPE", "SLURM_TIME_FORMAT"))
# Seconds since 1970: the last second of the year 9999, and the last one that has a date.
LATEST_END_S = 253_402_300_799


@dataclass(frozen=True)
class SlurmJob:
    """What Slurm told this process about its job and its step. A field that it did not tell is None; restarts is 0.

    Numbers that make no sense count as not told: such a variable was not set by Slurm.

    Args:
        job_id: number of the job
        array_job_id: number of the job array that it belongs to
        array_task_id: number of its task in that array
        cluster: name of the cluster
        restarts: how often Slurm put this job back into the queue and started it again
        told_end: when the job ends, in seconds since 1970
        rank: of this process in its step
        ranks_in_step: how many processes one srun started together
        ranks_per_node: how many of them run on the node that has the most"""
    job_id: str | None = None
    array_job_id: str | None = None
    array_task_id: str | None = None
    cluster: str | None = None
    restarts: int = 0
    told_end: float | None = None
    rank: int | None = None
    ranks_in_step: int | None = None
    ranks_per_node: int | None = None

    @classmethod
    def from_env(cls, variables: Mapping[str, str] | None = None) -> SlurmJob:
        """Read Slurm's variables.

        Args:
            variables: where to read them; default: this process's environment."""
        told = os.environ if variables is None else variables
        end = read_number(told, "SLURM_JOB_END_TIME")
        return cls(
            job_id=told.get("SLURM_JOB_ID") or None,
            array_job_id=told.get("SLURM_ARRAY_JOB_ID") or None,
            array_task_id=told.get("SLURM_ARRAY_TASK_ID") or None,
            cluster=told.get("SLURM_CLUSTER_NAME") or None,
            restarts=read_number(told, "SLURM_RESTART_COUNT") or 0,
            told_end=None if end is None or end > LATEST_END_S else float(end),
            rank=read_number(told, "SLURM_PROCID"),
            ranks_in_step=read_number(told, "SLURM_STEP_NUM_TASKS"),
            ranks_per_node=read_most_ranks(told),
        )

    @property
    def name(self) -> str | None:
        """The id by which Slurm's commands know this job alone; for a task of an array it is ARRAY_TASK."""
        if self.array_job_id and self.array_task_id:
            return f"{self.array_job_id}_{self.array_task_id}"
        return self.job_id

    def find_end(self) -> float | None:
        """Return when this job ends, in seconds since 1970; asks Slurm if it did not tell.

        Returns:
            math.inf for a job without a time limit; None outside Slurm, and if Slurm gives no answer."""
        if self.told_end is not None or self.name is None:
            return self.told_end
        # There may be no squeue: in a container, for example.
        with suppress(ValueError, OSError, subprocess.SubprocessError):
            answer = "".join(ask_squeue(self.name, "%e").stdout.split()[:1])
            return math.inf if answer in NO_LIMIT else datetime.fromisoformat(answer).timestamp()
        return None


def read_number(variables: Mapping[str, str], name: str) -> int | None:
    """Return a variable's whole number; None if it is not set or is not such a number."""
    text = variables.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def read_most_ranks(variables: Mapping[str, str]) -> int | None:
    """Return the most ranks on a node: of this step, told as "2(x3),1" for 2, 2, 2 and 1, else as was asked for."""
    counts = [re.sub(r"\(x\d+\)$", "", part) for part in variables.get("SLURM_STEP_TASKS_PER_NODE", "").split(",")]
    if all(count.isascii() and count.isdigit() and len(count) <= 9 for count in counts):
        return max(map(int, counts))
    return read_number(variables, "SLURM_NTASKS_PER_NODE")


def make_environment_of_new_job() -> dict[str, str]:
    """Return this process's environment without what Slurm told it of its own job: for a job that it submits.

    Outside a job such variables are the user's own."""
    inside = SlurmJob.from_env().job_id is not None
    return {name: value for name, value in os.environ.items()
            if not (inside and name.startswith("SLURM_")) or name in NOT_OF_A_JOB}


def has_ended(job: str) -> bool:
    """Tell whether Slurm is sure that no process of a job is alive: the job has ended, or waits for its next start.

    An answer without a state says nothing: squeue may hide the jobs of other users, for example."""
    with suppress(OSError, subprocess.SubprocessError):
        answer = ask_squeue(job, "%T")
        if answer.returncode:
            return "Invalid job id" in answer.stderr
        states = answer.stdout.split()
        return bool(states) and ENDED_STATES.issuperset(states)
    return False


def ask_squeue(job: str, field: str) -> subprocess.CompletedProcess[str]:
    """Ask Slurm for a field of a job, in whatever state and partition it is.

    squeue takes options from the environment: SQUEUE_STATES, SQUEUE_PARTITION and others would hide the job,
    SLURM_CLUSTERS would ask another cluster, and SLURM_TIME_FORMAT would change how times are written.

    Args:
        job: as `SlurmJob.name`
        field: of squeue's --format"""
    told = {name: value for name, value in os.environ.items()
            if not name.startswith("SQUEUE_") and name != "SLURM_CLUSTERS"}
    return subprocess.run(("squeue", "--noheader", "--all", "--states=all", "--jobs", job, "--format", field),
                          env=told | {"SLURM_TIME_FORMAT": "standard"}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=SQUEUE_TIMEOUT_S)
