"""What the job of a run printed, in FOLDER.txt beside the run folder: several starts, and what they said.

A job says there

    job NAME: start 1 on HOST: CONFIG SETTINGS        job NAME: ended with code 1, WHY
    job NAME: stopped with code 75 ...                job NAME: stopped with code 2: another job runs it

The last one belongs to a job that found the folder in use; a sweep says "since another process runs it". Its start is
not one of the run."""
from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

SAID = re.compile(r"^job (?P<job>\S+): (?P<what>.*)$", re.M)
# The configuration is one word for a shell.
STARTED = re.compile(r"""start \d+ on \S+: (?:\$'(?:\\.|[^'\\])*'|'[^']*'|"[^"]*"|\\.|\S)+ ?(?P<settings>.*)""")
ENDED = re.compile(r"ended with code (-?\d+)")
IN_USE_FOR_SWEEP = "stopped with code 2, since another process runs it"
IN_USE = ("stopped with code 2: another job runs it", IN_USE_FOR_SWEEP)
REFUSED_FOLDER = re.compile(r"^(?:\d+: )?fedmpi: run folder .* is in use by .*\n", re.M)
# What a run says of its failure, and what its launcher says of it: the latter complains of any code but 0.
RUN_SAID = re.compile(r"^(?:\d+: )?(fedmpi: .*)$", re.M)
LAUNCHER_SAID = re.compile(r"^(?:srun|slurmstepd): error: (.*)$", re.M)


class JobLog(NamedTuple):
    """What FOLDER.txt holds."""
    starts: int
    # the settings of the last start
    settings: str
    # what was printed since the last start
    printed: str
    # what the job itself said last
    last: str


def read_job_log(folder: Path) -> JobLog:
    """Return what a job has said of the run of a folder, and what the run has printed; or why this cannot be read."""
    path = find_job_log(folder)
    try:
        text = path.read_text(errors="replace") if path.is_file() else ""
    except OSError as error:
        return JobLog(0, "", "", f"{path} cannot be read: {error.strerror}")
    said: list[re.Match[str]] = []
    for match in SAID.finditer(text):
        if match["what"] not in IN_USE:
            said.append(match)
        elif starts_of_job := [one for one in said if one["job"] == match["job"]]:
            said.remove(starts_of_job[-1])
    starts = [(match.end(), found["settings"]) for match in said if (found := STARTED.fullmatch(match["what"]))]
    since, settings = starts[-1] if starts else (0, "")
    printed = text[since:]
    if any(words in text for words in IN_USE):
        printed = REFUSED_FOLDER.sub("", printed)
    return JobLog(len(starts), settings, printed, said[-1]["what"] if said else "")


def find_job_log(folder: Path) -> Path:
    """Return the file beside a run folder in which its job keeps what it prints."""
    # A user may stand in the folder and call it `.`, which has no name.
    path = Path(os.path.abspath(folder))
    return path.parent / f"{path.name}.txt"


def is_job_log(path: Path) -> bool:
    """Say whether a text file is what a job prints: a job has spoken in it, nobody has yet, or it cannot be read."""
    try:
        text = path.read_text(errors="replace") if path.is_file() else None
    except OSError:
        return True
    return text is not None and (not text.strip() or bool(SAID.search(text)))


def find_blame(text: str, pattern: re.Pattern[str] = RUN_SAID) -> str:
    """Return what a run, or (LAUNCHER_SAID) its launcher, said first of a failure in what a job has printed, or ""."""
    found = pattern.search(text)
    return found[1] if found else ""
