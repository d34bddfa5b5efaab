"""What tells how a run goes: its result, its lock, its log, and what its job printed. From that follow the state of the
run, and the words on its end."""
from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedmpi.errors import FINISHED, SAVED
from fedmpi.json_values import JsonObject
from fedmpi.storage import run_files
from fedmpi.storage.job_log import ENDED, LAUNCHER_SAID, STARTED, JobLog, find_blame, find_job_log, read_job_log
from fedmpi.storage.lock import describe_dead_holder
from fedmpi.storage.run_end import End, read_end_behind

BROKEN = ("failed", "killed")


class Evidence(NamedTuple):
    """What tells of the last start of a run."""
    result: JsonObject | None
    # why there is a result that cannot be read
    damage: str
    # whether its process goes on, as far as can be told from here
    alive: bool
    # what its folder tells of its end
    end: End
    # what its job said; of a start by hand after that, which the job does not know of, nothing
    job: JobLog
    # whether it has left rounds, its settings or a checkpoint
    begun: bool

    @property
    def orderly(self) -> bool:
        """Whether the run itself has said in this start that it ended in an orderly way, with whatever code its
        launcher then ended."""
        return self.end.state == "unfinished" and self.end.said in self.job.printed

    @property
    def code_of_failure(self) -> bool:
        """Whether its job ended with the code of a failure."""
        code = ENDED.match(self.job.last)
        return bool(code and int(code[1]) not in (FINISHED, SAVED))

    @property
    def blame(self) -> str:
        """What a run that does not go on said of its failure, or ""."""
        return "" if self.alive else find_blame(self.job.printed)


def gather_evidence(folder: Path, result: JsonObject | None, damage: str, begun: bool) -> Evidence:
    """Return what tells of a run.

    Args:
        folder: of the run.
        result: of enough rounds, or None.
        damage: see `Evidence`.
        begun: see `Evidence`."""
    job = read_job_log(folder)
    dead = None if result else describe_dead_holder(folder)
    alive = dead == ""
    # A start that has printed nothing yet is not the one of which the folder tells.
    end = End() if result or job.starts and not job.printed.strip() else read_end_behind(folder, dead)
    ended_otherwise = not STARTED.fullmatch(job.last) if alive else end.said not in job.printed
    if ended_otherwise and is_newer(folder / run_files.LOG, find_job_log(folder)):
        # A start by hand went on after a failure.
        job = job._replace(printed="", last="")
    return Evidence(result, damage, alive, end, job, begun)


def decide_state(found: Evidence) -> str:
    """Return what became of a run, one of STATES: the first of these that applies."""
    cases = (("finished", found.result),
             ("failed", found.damage),
             ("unfinished", found.alive or found.orderly),
             ("failed", found.code_of_failure and found.blame),
             (found.end.state, found.end.state in BROKEN),
             ("failed", found.code_of_failure),
             ("unfinished", found.job.starts or found.begun))
    return next((state for state, applies in cases if applies), "waiting")


def choose_words(found: Evidence, state: str) -> str:
    """Return what is to be said of a run in a state: who or what is to blame, how it ended, or its job's last words."""
    end_of_job = "" if STARTED.fullmatch(found.job.last) else found.job.last
    broken = state in BROKEN
    # A run that was killed has said nothing, but its launcher may have.
    blame = found.blame or (find_blame(found.job.printed, LAUNCHER_SAID) if broken else "")
    said = found.damage or blame or (state == "unfinished" and end_of_job) or found.end.said or found.job.last
    return f"{said}; its job {end_of_job}" if broken and end_of_job.startswith("stopped ") else said


def is_newer(path: Path, than: Path) -> bool:
    """Say whether a file was written after another one; False if either cannot be looked at."""
    with suppress(OSError):
        return path.stat().st_mtime_ns > than.stat().st_mtime_ns
    return False
