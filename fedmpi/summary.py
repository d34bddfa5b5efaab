"""What became of the runs of a job array, from what they left: FOLDER/N is a run folder, FOLDER/N.txt what its job said
(see submit.py)."""
from __future__ import annotations

import json
import re
from pathlib import Path

from fedmpi.columns import columns
from fedmpi.errors import BadInput
from fedmpi.progress import percent

SAID = re.compile(r"^job \S+: (?P<what>.*)$", re.M)
BLAME = (re.compile(r"^(?:\d+: )?(fedmpi: .*)$", re.M), re.compile(r"^(?:srun|slurmstepd): error: (.*)$", re.M))


def summary(folder: str | Path) -> str:
    """Return a table of the runs, and a line that counts them. Raises BadInput where there is none."""
    logs = sorted((p for p in Path(folder).glob("*.txt") if p.stem.isdigit()), key=lambda path: int(path.stem))
    if not logs:
        raise BadInput(f"{folder}: there is no run of a job array here; give the folder that holds 0.txt, 1.txt, ...")
    rows = [row(path) for path in logs]
    counts = {state: sum(r[1] == state for r in rows) for state in ("finished", "failed", "unfinished")}
    return (columns(["run", "state", "starts", "settings", "result, or what it said last"], rows, right=("starts",))
            + "\n" + ", ".join(f"{number} {state}" for state, number in counts.items() if number))


def row(log: Path) -> list:
    """Return number, state, starts, settings and the last words of a run."""
    text, result = log.read_text(errors="replace"), log.with_suffix("") / "result.json"
    said = [match["what"] for match in SAID.finditer(text)]
    starts = [what for what in said if what.startswith("start ")]
    last = said[-1] if said else ""
    ended = last.startswith("ended with code")
    state = "finished" if result.exists() else "failed" if ended else "unfinished"
    settings = starts[-1].partition(": ")[2].partition(" ")[2] if starts else ""
    return [log.stem, state, len(starts), settings, outcome(result) if state == "finished" else why(text, last)]


def outcome(result: Path) -> str:
    values = json.loads(result.read_text())
    return (f"accuracy {percent(values['accuracy_mean'])} after {values['rounds']} rounds, "
            f"digest {values['digest'][:16]}")


def why(text: str, last: str) -> str:
    """Return what a run said of its failure since its last start, else what its job said last."""
    text = text[max((match.start() for match in SAID.finditer(text) if match["what"].startswith("start ")), default=0):]
    for blame in BLAME:
        found = blame.findall(text)
        if found:
            return found[0]
    return last
