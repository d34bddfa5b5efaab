"""How far runs are, while they go on: `fedmpi status`. It reads run folders and imports nothing that they name."""
from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedmpi.commands.summary import make_natural_key
from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.paths import describe_unreadable, is_readable
from fedmpi.storage import run_files, run_status
from fedmpi.storage.listing import find_saved_round
from fedmpi.storage.run_end import read_end
from fedmpi.task import choose_heading
from fedmpi.text import format_columns, format_duration

# The time of a round is the mean of so many rounds.
ROUNDS_OF_THE_RATE = 10
# A run that is alive counts as silent after so many times the length of its rounds, and after this time at least.
SILENT_ROUNDS, SILENT_S = 5, 120.
# Folders are searched for runs so many levels deep.
MOST_LEVELS = 6


def show_status(found: list[JsonObject]) -> str:
    """Return a table of what `read_status` found, notes on single runs, and a line that counts the runs by state."""
    measure = choose_heading(one["reached"] for one in found)
    heads = ["run", "state", "round", measure, "a round", "left", "MiB", "last sign", "saved"]
    rows = [[one["run"], one["state"], f"{one['round']}/{one['rounds'] or '?'}", one["reached"],
             *(format_duration(one[key]) if one[key] is not None else "-"
               for key in ("seconds_per_round", "seconds_left")), "-" if one["memory_mib"] is None
             else f"{one['memory_mib']:,.0f}", "-" if one["seconds_since_last_sign"] is None
             else f"{format_duration(one['seconds_since_last_sign'])} ago", "-" if one["saved_round"] is None
             else f"round {one['saved_round']}"] for one in found]
    table = format_columns(heads, rows, right=("round", measure, "a round", "left", "MiB"))
    states = [one["state"] for one in found]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    notes = [f"{one['run']}: {one['note']}" for one in found if one["note"]]
    return "\n".join([table, *notes, counts])


def read_status(runs: list[tuple[str, Path]], planned: Mapping[Path, int] | None = None) -> list[JsonObject]:
    """Return what is known of each run.

    Args:
        runs: name and folder of each
        planned: by folder, the rounds that a job asks for, which may be more than those of the run's own settings

    Returns:
        for each run: `run` (its name), `folder`, `state` (waiting, running, silent, stopped, failed, killed,
        finished, unreadable), `round`, `rounds`, `accuracy` (share), `reached` (accuracy or error as text),
        `seconds_per_round`, `seconds_left`, `memory_mib` (the most that a rank held),
        `seconds_since_last_sign`, `saved_round` (of the newest checkpoint), `note`. Unknown values are None."""
    planned = planned or {}
    return [make_unreadable(name, folder, closed) if (closed := find_closed(folder)) else
            collect_status(name, folder, planned.get(folder)) for name, folder in runs]


def find_closed(folder: Path) -> Path | None:
    """Return the folder of a run, or that of its checkpoints, if it cannot be looked into, else None."""
    return next((part for part in (folder, folder / run_files.CHECKPOINTS) if not is_readable(part)), None)


def find_runs(paths: list[str]) -> list[tuple[str, Path]]:
    """Return name and folder of the runs at or below some paths, those of each path in natural order.

    Raises:
        BadInput: if there is none at or below one of them."""
    folders = []
    for path in dict.fromkeys(paths):
        found = sorted(walk_runs(Path(path), MOST_LEVELS), key=make_natural_key)
        if not found:
            raise BadInput(f"{path}: there is no run in this folder or below it; give run folders, a folder that holds "
                           "runs, or the file of a job")
        folders += found
    return [(str(folder), folder) for folder in dict.fromkeys(folders)]


def walk_runs(path: Path, levels: int) -> Iterator[Path]:
    """Yield the run folders at or below a path, so many levels deep, and folders that cannot be looked into."""
    if not is_readable(path) or (path / run_files.CONFIG).is_file() or is_early_end(path):
        yield path
    elif levels and path.is_dir():
        for entry in path.iterdir():
            if entry.is_dir():
                # Through a link only a run is looked at, since links may go round in a circle.
                yield from walk_runs(entry, 0 if entry.is_symlink() else levels - 1)


def is_early_end(path: Path) -> bool:
    """Say whether a run was begun in a folder and ended before it wrote its configuration."""
    return (path / run_files.LOG).is_file() and (
        (path / run_files.LOCK).exists() or (path / run_files.CHECKPOINTS).is_dir() or bool(read_end(path).said))


def make_unreadable(name: str, folder: Path, closed: Path) -> JsonObject:
    """Return what is known of a run of which a folder, `closed`, cannot be looked into."""
    unknown = dict.fromkeys(("rounds", "accuracy", "seconds_per_round", "seconds_left", "memory_mib",
                             "seconds_since_last_sign", "saved_round"))
    return {"run": name, "folder": str(folder), "state": "unreadable", "round": 0, "reached": "-", **unknown,
            "note": describe_unreadable(closed)}


def collect_status(name: str, folder: Path, planned: int | None = None) -> JsonObject:
    """Return what is known of a run; see `read_status`."""
    rounds, damage = read_planned_rounds(folder) if (folder / run_files.CONFIG).exists() else (planned, "")
    if planned and rounds:
        rounds = max(rounds, planned)
    outcome = run_status.read_outcome(folder, planned or 0)
    rate = compute_seconds_per_round(outcome.lines)
    silence = compute_seconds_since_sign(folder)
    state, saved = find_state(outcome, silence, rate), find_saved_round(folder)
    left = max(0, rounds - outcome.round) * rate if rounds and rate is not None else None
    note = damage or (outcome.said if state in ("stopped", "failed", "killed") else "")
    if state == "silent":
        note = (f"its process is alive, but no round has ended for {format_duration(silence or 0.)}; look at "
                f"{folder / run_files.LOG}, and at the memory and the disk of its nodes")
    elif state == "stopped" and not note:
        note = f"it is not known how it ended, since {folder / run_files.LOG} does not say so"
    elif state == "killed":
        note += "; --resume auto " + ("begins anew" if saved is None else f"continues after round {saved}")
    return {"run": name, "folder": str(folder), "state": state, "round": outcome.round, "rounds": rounds,
            "accuracy": None if outcome.accuracy != outcome.accuracy else outcome.accuracy, "reached": outcome.reached,
            "seconds_per_round": rate,
            "seconds_left": left if state in ("running", "silent") else None,
            "memory_mib": outcome.lines[-1].get("memory_mib") if outcome.lines else None,
            "seconds_since_last_sign": silence, "saved_round": saved, "note": note}


def find_state(outcome: run_status.Outcome, silence: float | None, rate: float | None) -> str:
    """Return the state of a run, among them whether it goes on at present.

    Args:
        outcome: what became of the run
        silence: seconds since its last round or line of the log
        rate: seconds of a round"""
    if outcome.alive:
        patience = max(SILENT_S, SILENT_ROUNDS * (rate or 0.))
        return "silent" if rate is not None and silence is not None and silence > patience else "running"
    return "stopped" if outcome.state == "unfinished" else outcome.state


def read_planned_rounds(folder: Path) -> tuple[int | None, str]:
    """Return the rounds that a run is to have by its settings, and a note if these do not say it."""
    try:
        rounds = run_status.read_settings(folder).get("rounds")
    except BadInput as error:
        return None, str(error)
    return (rounds, "") if isinstance(rounds, int) else (None, f"{folder / run_files.CONFIG} names no rounds")


def compute_seconds_per_round(lines: list[JsonObject]) -> float | None:
    """Return the seconds of a round, as a mean over the latest ones; None before the first."""
    times = [(line["round"], line["seconds"]) for line in lines[-ROUNDS_OF_THE_RATE - 1:]
             if isinstance(line.get("seconds"), int | float)]
    first, last = times[0] if len(times) > 1 else (0, 0.), times[-1] if times else (0, 0.)
    return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else None


def compute_seconds_since_sign(folder: Path) -> float | None:
    """Return the seconds since a run last wrote to its records or its log; None if it wrote neither."""
    paths = [folder / run_files.METRICS, folder / run_files.LOG]
    written = [path.stat().st_mtime for path in paths if path.is_file()]
    return max(0., time.time() - max(written)) if written else None
