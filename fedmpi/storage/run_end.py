"""How the last start of a run ended, read from two traces that every version leaves, also on a full disk: its lock,
which a process that is killed does not remove, and what log.txt said last."""
from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from fedmpi.errors import ROUND_GIVEN_UP
from fedmpi.storage import run_files
from fedmpi.storage.lock import describe_dead_holder, read_begin
from fedmpi.storage.seal import Flaw, open_regular

# The end of a log that is read: a failure has a traceback below it.
LOG_END_BYTES = 1 << 18
# What a run says when it begins, ends in an orderly way (below), and fails; each line begins with the time.
LAST_WORDS = re.compile(
    r"^(?P<time>[\d-]{10} [\d:]{8})  (?:(?P<begun>fedmpi [\w.+]+: .*)"
    r"|(?P<unfinished>.*: saved after round \d+ of \d+ in .*|the caller's on_round ended the run .*"
    r"|digest [0-9a-f]{16}  results in .*|fedmpi: .*: " + ROUND_GIVEN_UP + r")"
    r"|(?P<failed>fedmpi: .*))$", re.M)


def format_saved(why: str, round: int, rounds: int, folder: Path) -> str:
    """Return what a run says that stops before its last round."""
    return f"{why}: saved after round {round} of {rounds} in {folder}; start again with --out {folder} --resume auto"


def format_end_by_callback(round: int, error: BaseException | None) -> str:
    """Return what a run says whose caller's `on_round` raised an error."""
    return f"the caller's on_round ended the run after round {round}: {error!r}"


def format_digest(digest: str, folder: Path) -> str:
    """Return what a run says that has finished."""
    return f"digest {digest[:16]}  results in {folder}"


class End(NamedTuple):
    """state: killed, failed, unfinished (an orderly end), or "" if it goes on or its folder does not tell."""
    state: str = ""
    said: str = ""


def read_end(folder: Path) -> End:
    """Return how the last start of a run ended, as far as can be told from here."""
    return read_end_behind(folder, describe_dead_holder(folder))


def read_end_behind(folder: Path, dead: str | None) -> End:
    """Return how the last start of a run ended; `dead` is what `describe_dead_holder` says of its lock."""
    if dead == "":
        return End()
    said_at, end = read_last_words(folder)
    locked_at = read_begin(folder)
    # What was logged since the lock was taken is of this start: of a rank 0 that hung, why a worker ended the job.
    if dead and not (locked_at and said_at >= locked_at):
        return End("killed", f"{dead}; it was killed without a word (out of memory or time, perhaps), or its machine "
                             "failed")
    return end


def read_last_words(folder: Path) -> tuple[str, End]:
    """Return when a run's log spoke last of its end, in TIME_FORMAT, and what it said; End() if it did not."""
    found = list(LAST_WORDS.finditer(read_log_end(folder / run_files.LOG)))
    state = found[-1].lastgroup or "" if found else "begun"
    return ("", End()) if state == "begun" else (found[-1]["time"], End(state, found[-1][state]))


def read_log_end(path: Path) -> str:
    """Return the last LOG_END_BYTES of a log, "" if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(-min(LOG_END_BYTES, os.fstat(file.fileno()).st_size), os.SEEK_END)
            return file.read().decode(errors="replace")
    except (OSError, Flaw):
        return ""
