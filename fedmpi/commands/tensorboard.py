"""The measures of runs, finished or not, as TensorBoard's event files: RUN/tensorboard/, made from metrics.jsonl.

All is written again each time and takes the place of what was there: a run that was stopped and resumed has every
point once."""
from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path

from fedmpi.extras import require_extra_of_command
from fedmpi.json_values import JsonObject
from fedmpi.storage import run_files, run_status
from fedmpi.storage.atomic import report_failed_writes

EVENTS_FOLDER = "tensorboard"


def write_events(folders: list[Path]) -> str:
    """Write the event files of run folders; returns what to tell the user. Raises BadInput and StorageError."""
    writer = import_event_writer()
    silence_refused_writes()
    for folder in folders:
        # This refuses a folder that is not a run.
        run_status.read_settings(folder)
        with report_failed_writes(folder / EVENTS_FOLDER):
            replace_events(writer, folder / EVENTS_FOLDER, run_status.read_metrics(folder), find_start_time(folder))
    return f"tensorboard --logdir {shlex.quote(find_common_folder(folders))}"


def silence_refused_writes() -> None:
    """Let TensorBoard's thread print no traceback of a write that the disk refuses, which is reported without it."""
    before = threading.excepthook

    def report(failure: threading.ExceptHookArgs) -> None:
        if not (isinstance(failure.exc_value, OSError) and type(failure.thread).__module__.startswith("tensorboard.")):
            before(failure)
    threading.excepthook = report


def find_common_folder(folders: Sequence[Path]) -> str:
    """Return the path of the folder that holds all of these, or is the only one: relative to the current folder if all
    of them are, else absolute."""
    common = os.path.commonpath([os.path.abspath(folder) for folder in folders])
    return common if any(folder.is_absolute() for folder in folders) else os.path.relpath(common)


def import_event_writer() -> type:
    """Return the class that writes event files. Raises BadInput where it is not installed."""
    with require_extra_of_command("tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter


def find_start_time(folder: Path) -> float:
    """Return when a run would have begun if it had not been interrupted since, in seconds since 1970."""
    path, lines = folder / run_files.METRICS, run_status.read_metrics(folder)
    return path.stat().st_mtime - (lines[-1].get("seconds") or 0.) if lines else 0.


def replace_events(writer: type, to: Path, lines: list[JsonObject], begin: float) -> None:
    """Write a step per round in place of what a folder holds."""
    old = sorted(to.glob("events.out.tfevents.*"))
    # With purge_step, a TensorBoard that goes on reading, or that reads both files, forgets the points of the old one.
    with writer(to, purge_step=0) as board:
        for line in lines:
            for name, value in list_scalars(line).items():
                board.add_scalar(name, value, line["round"], begin + (line.get("seconds") or 0.))
    # The newest old file stays: a TensorBoard that is open would wait for ever at a file that is gone.
    for path in old[:-1]:
        path.unlink()


def list_scalars(line: JsonObject) -> dict[str, float]:
    """Return the measures of a round: lists as one for each place, mappings as one for each key, those without a value
    left out."""
    found: dict[str, object] = {}
    for name, value in line.items():
        parts = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else None
        found |= {name: value} if parts is None else {f"{name}/{part}": v for part, v in parts}
    return {name: value for name, value in found.items() if name != "round" and isinstance(value, int | float)}
