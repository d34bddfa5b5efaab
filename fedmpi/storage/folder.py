"""The run folder: which process may write in it, and the small files that a run leaves there, see run_files.py."""
from __future__ import annotations

import json
import math
import os
import stat
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedmpi.config.load import format_yaml
from fedmpi.errors import BadInput, FedmpiError, StorageError
from fedmpi.json_values import JsonObject
from fedmpi.paths import shorten_path, write_text
from fedmpi.storage import run_files
from fedmpi.storage.atomic import atomic, describe_reason, report_failed_writes, report_failing_disk
from fedmpi.storage.background import BackgroundWrite
from fedmpi.storage.history import History
from fedmpi.storage.listing import ASIDE_NAMES, holds_checkpoint, list_checkpoints, match_files, parse_round
from fedmpi.storage.lock import Lock
from fedmpi.storage.run_status import holds_begun_run

# So many checkpoints that were set aside stay, or those of the last time if these are more, so that a job that is
# restarted on a bad disk does not fill it.
MOST_SET_ASIDE = 5


class RunFolder:
    """A claimed run folder; only rank 0 has one."""

    def __init__(self, path: Path, lock: Lock, new: bool = False):
        # new: this start has made the folder
        self.path, self.lock, self.new = path, lock, new
        self.checkpoints = path / run_files.CHECKPOINTS
        self.log_path = path / run_files.LOG
        # says whose lock was inherited and why; None: nobody's
        self.taken_over = lock.taken_over
        self.history = History(path / run_files.HISTORY)
        # whether metrics.jsonl lacks lines, or ends in half of one
        self.behind = False
        # what is written while training goes on
        self._background: BackgroundWrite[dict[str, np.ndarray]] | None = None

    @classmethod
    def claim(cls, path: str | Path, resume: bool, new: bool = False) -> RunFolder:
        """Create the folder where needed and lock it. Raises BadInput when it cannot be had.

        Args:
            resume: it may hold a run.
            new: the caller has just made it.

        Raises StorageError if the disk fails, after which the start may be tried again."""
        path = Path(path)
        try:
            new = new or not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            folder = cls(path, Lock(path), new)
        except (OSError, ValueError) as error:
            report_failing_disk(path, error)
            # A ValueError says that the name holds a NUL character.
            raise BadInput(f"run folder {shorten_path(path)} cannot be written: {describe_reason(error)}; "
                           "choose another --out") from None
        try:
            folder.refuse_other_kinds()
            folder.refuse_other_owners()
            folder.checkpoints.mkdir(exist_ok=True)
            if not resume and folder.has_run():
                raise BadInput(f"run folder {path} already holds a run; "
                               "continue it with --resume auto, or choose another --out")
        except (BadInput, OSError) as error:
            folder.release()
            report_failing_disk(path, error)
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"{folder.checkpoints} cannot be made: {describe_reason(error)}; choose another --out"
                           ) from None
        return folder

    def fix_place(self) -> None:
        """Name all files by whole paths from here on, since a Python program may change its working folder."""
        self.path, self.checkpoints = self.path.absolute(), self.checkpoints.absolute()
        self.log_path, self.history.path = self.log_path.absolute(), self.history.path.absolute()
        self.lock.path = self.lock.path.absolute()

    def refuse_other_kinds(self) -> None:
        """Raise BadInput for a folder, a pipe, a device or a link to nothing in the place of a file of the run.

        The log may be a device, such as /dev/null. It is not a link to another file, whose owner may not want its
        lines: only the log is written to where it lies, all others are replaced."""
        for path in (self.log_path, self.history.path, *map(self.path.joinpath, run_files.SMALL_FILES)):
            if not os.path.lexists(path):
                continue
            mode = path.stat().st_mode if path.exists() else 0
            if stat.S_ISREG(mode) and path == self.log_path and path.is_symlink():
                raise BadInput(f"{path} is a link to another file, {path.readlink()}, which would grow by the lines of "
                               "the run; remove the link, or choose another --out")
            if not (stat.S_ISREG(mode) or path == self.log_path and stat.S_ISCHR(mode)):
                raise BadInput(f"{path} is in the place of a file of the run, and is not a regular file; remove it, or "
                               "choose another --out")

    def refuse_other_owners(self) -> None:
        """Raise BadInput for a file with the name of one of the run's, in a folder where no run has been: the user's
        own config.yaml beside other work (`--out .`), or the metrics.jsonl of another program.

        The log is the first file that a run leaves; what has a result or a checkpoint but no log is a run that was
        copied without it."""
        if self.log_path.exists() or (self.path / run_files.RESULT).exists() or holds_checkpoint(self.path):
            return
        found = [path for path in (self.history.path, *map(self.path.joinpath, run_files.SMALL_FILES)) if path.exists()]
        if found:
            raise BadInput(f"{shorten_path(found[0])} is there, but nothing else of a run, and the run would replace "
                           "it; choose another --out, or move the file away")

    def has_run(self) -> bool:
        """Say whether a run has left its configuration, result or checkpoints here."""
        return holds_run(self.path)

    def release(self) -> str:
        """Unlock the folder, once nothing is written in it any more. Returns what to tell the user of that write."""
        write, self._background = self._background, None
        if write:
            write.wait()
        self.lock.release()
        return write.describe_loss() if write else ""

    def begin_write(self, write: BackgroundWrite[dict[str, np.ndarray]]) -> None:
        """Note what is written while training goes on: the folder stays locked until it ends."""
        self._background = write

    def end_write(self, wait: bool) -> tuple[Path, float] | None:
        """Return the path of what was written meanwhile and the seconds that this took, once; None if there is nothing,
        or, without `wait`, if it goes on. Raises the error of the write. If Ctrl-C ends the wait, `release` waits."""
        write = self._background
        if write is None or not (wait or write.done):
            return None
        try:
            return write.result(), write.seconds
        finally:
            self._background = None if write.done else self._background

    def withdraw(self) -> None:
        """Unlock the folder of a run that was refused; leave none behind that holds nothing."""
        # If the lock file stays, the next holder takes it over.
        with suppress(OSError):
            if self.new:
                self.checkpoints.rmdir()
        self.release()
        with suppress(OSError):
            if self.new:
                self.path.rmdir()

    def check_lock(self) -> None:
        """Raise FedmpiError when another run took the folder over, as it may after a minute of silence."""
        with report_failed_writes(self.path):
            there = self.path.is_dir()
        if not there:
            raise StorageError(f"run folder {self.path} is gone: it was removed, or its file system is not mounted any "
                               "more; put it back, or start again with another --out")
        with report_failed_writes(self.lock.path):
            held = self.lock.held()
        if not held:
            raise FedmpiError(f"run folder {self.path} is no longer locked by this run: another run took it "
                              "over, its file `lock` was removed, or its file system is not mounted any more; this run "
                              "stops so that no two mix")

    def store_config(self, plain: JsonObject) -> None:
        """Write config.yaml."""
        self.replace(run_files.CONFIG, format_yaml(plain))

    def store_clients(self, table: str) -> None:
        """Write clients.csv."""
        self.replace(run_files.CLIENTS, table)

    def append_metrics(self, lines: list[JsonObject]) -> None:
        """Add the last of `lines` to metrics.jsonl, or all where an earlier one could not be written.

        Numbers that JSON lacks (nan, inf) become null."""
        if self.behind:
            return self.rewrite_metrics(lines)
        self.behind = True
        self.check_lock()
        path = self.path / run_files.METRICS
        with report_failed_writes(path), open(path, "a", opener=open_at_once) as file:
            file.write(line_to_json(lines[-1]) + "\n")
        self.behind = False

    def request_metrics_rewrite(self) -> None:
        """Let the next `append_metrics` write all lines, since earlier ones have changed."""
        self.behind = True

    def rewrite_metrics(self, lines: list[JsonObject]) -> None:
        """Leave only `lines` in metrics.jsonl: after a restart, those that the checkpoint holds."""
        self.replace(run_files.METRICS, "".join(line_to_json(line) + "\n" for line in lines))
        self.behind = False

    def finish(self, result: JsonObject, lines: list[JsonObject]) -> None:
        """Write result.json, the mark that the run is done; call it last. `lines`: those of metrics.jsonl."""
        if self.behind:
            self.rewrite_metrics(lines)
        self.save_history()
        self.history.merge()
        self.replace(run_files.RESULT, line_to_json(result, indent=1) + "\n")

    def remove_result(self) -> None:
        """Remove the mark that the run is done."""
        path = self.path / run_files.RESULT
        with report_failed_writes(path):
            path.unlink(missing_ok=True)

    def replace(self, name: str, text: str) -> None:
        """Write a small file of the folder again. Raises StorageError, or FedmpiError if the lock was lost."""
        self.check_lock()
        with atomic(self.path / name) as part:
            write_text(part, text)

    def append_history(self, round: int, columns: dict[str, np.ndarray]) -> None:
        """Note the measures of a round, (N,) or (N, width) each, until `save_history`."""
        self.history.append(round, columns)

    def save_history(self) -> None:
        """Write what was noted to the disk; to be called before a checkpoint is written."""
        self.check_lock()
        self.history.save()

    def list_later_checkpoints(self, round: int) -> list[Path]:
        """List the checkpoints after `round`, the newest first."""
        return [path for path in list_checkpoints(self.checkpoints) if parse_round(path) > round]

    def set_later_checkpoints_aside(self, round: int, resumed: Path | None = None) -> str | None:
        """Rename the checkpoints after `round`, after which the run goes on in another way: else `--resume auto` would
        take them. Of those set aside before, only the latest stay. Returns what to tell the user, None if there are
        none to set aside.

        Args:
            resumed: the checkpoint from which the run goes on; it is not deleted."""
        later = self.list_later_checkpoints(round)
        if not later:
            return None
        self.check_lock()
        names = [f"aside-{path.name}" for path in later]
        for path, name in zip(later, names, strict=True):
            with report_failed_writes(path):
                os.replace(path, path.with_name(name))
        stay = {*names, resumed.name} if resumed and resumed.parent.samefile(self.checkpoints) else {*names}
        before = sorted((path for path in match_files(self.checkpoints, ASIDE_NAMES) if path.name not in stay),
                        key=lambda path: path.lstat().st_mtime)
        go = before[:max(0, len(before) + len(names) - MOST_SET_ASIDE)]
        for path in go:
            with report_failed_writes(path):
                path.unlink()
        gone = f"; deleted, as too many were set aside: {', '.join(path.name for path in go)}" if go else ""
        return (f"checkpoints after round {round} are set aside: {self.checkpoints} keeps them as {', '.join(names)}"
                f"{gone}")

    def truncate_history(self, round: int, expected: str = "") -> str | None:
        """Drop the history after `round`. If it is damaged, put it aside and return what to tell the user, else None.

        Args:
            expected: the chain of the history that the checkpoint knows."""
        self.check_lock()
        return self.history.truncate(round, expected)


def holds_run(path: Path) -> bool:
    """Say whether a run has left its configuration, result or checkpoints in a folder."""
    return (path / run_files.RESULT).exists() or holds_begun_run(path)


def refuse_file_of_run(path: Path) -> None:
    """Raise BadInput if a file that was given as a job is one that a run has left: its folder was meant."""
    folder, names = path.parent, (*run_files.SMALL_FILES, run_files.HISTORY, run_files.LOG)
    if path.name in names and ((folder / run_files.LOG).exists() or (folder / run_files.RESULT).exists()):
        raise BadInput(f"{path} is a file of a run, not a job; give the folder of the run, {folder}")


def open_at_once(name: str, flags: int) -> int:
    """Open a file; a pipe that nobody reads is refused in place of waited for."""
    return os.open(name, flags | os.O_NONBLOCK, 0o666)


def line_to_json(value: object, indent: int | None = None) -> str:
    """Return a value as JSON text, with null for numbers that JSON lacks (nan, inf).

    Args:
        value: anything that `replace_non_finite` makes plain.
        indent: spaces for each level of lines; None: all in one line."""
    return json.dumps(replace_non_finite(value), allow_nan=False, indent=indent)


def replace_non_finite(value: object) -> object:
    """Return a copy of nested values in which NumPy's are plain Python, and None stands for nan and inf."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {k: replace_non_finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
