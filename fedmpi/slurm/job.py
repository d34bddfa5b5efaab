"""What a process may ask Slurm: which job it belongs to, when that job ends, whether another job still runs."""
from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from datetime import datetime

SCONTROL_TIMEOUT_S = 20      # seconds for Slurm's controller to answer


def job_id() -> str | None:
    """Return the id under which Slurm's commands know this job alone; a task of an array is ARRAY_TASK."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def end_of_job() -> float | None:
    """Return when this job ends, in seconds since 1970; None outside Slurm, without a limit, or without an answer."""
    told = os.environ.get("SLURM_JOB_END_TIME", "")
    if told.isdigit() or job_id() is None:
        return float(told) if told.isdigit() else None
    with suppress(ValueError, OSError, subprocess.SubprocessError):      # N/A; no squeue here, in a container say
        answer = ask("squeue", "--noheader", "--jobs", job_id(), "--format", "%e")
        return datetime.fromisoformat(answer.stdout.split()[0] if answer.stdout.strip() else "").timestamp()
    return None


def ended(job: str) -> bool:
    """Say whether Slurm knows for certain that no process of a job is alive: it has ended, or waits to start again."""
    with suppress(OSError, subprocess.SubprocessError):
        answer = ask("squeue", "--noheader", "--jobs", job, "--format", "%T")
        if answer.returncode:
            return "Invalid job id" in answer.stderr
        return set(answer.stdout.split()) <= {"PENDING"}
    return False


def ask(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SCONTROL_TIMEOUT_S)
