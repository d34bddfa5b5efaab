"""What tests of a day with a GPU share: days of planted steps, and waits for processes."""
from __future__ import annotations

import time
from pathlib import Path

from benchmarks.gpu.day import Day, Step

ROOT = Path(__file__).parents[2]
HEAD = {"when": "today", "commit": "0", "device": "cpu", "small": True}
# A safety net: waits take about a second.
PATIENCE_S = 60
# Time for a step that goes well; on a busy machine it takes more than a second.
SHORT_S = 3.


def step(call: str, *words: str, limit_s=PATIENCE_S, silent_s=PATIENCE_S, needs_s=1.) -> Step:
    return Step(call, f"tests.benchmarks.planted_steps:{call}", limit_s, silent_s, needs_s, words)


def day(to: Path, *steps: Step, budget_s=10 * PATIENCE_S) -> Day:
    return Day("correctness", list(steps), to, budget_s, "cpu", True, HEAD)


def whats(found: dict) -> list[str]:
    return [row["what"] for row in found["sums"]]


def alive(pid: int) -> bool:
    """Say whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(ready) -> None:
    last = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < last
        time.sleep(.02)


def noted(pid: Path) -> bool:
    """Say whether a process has written its number; between creation and writing the file is empty."""
    return pid.exists() and pid.read_text() != ""
