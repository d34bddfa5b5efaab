"""The books of the simulated GPU: counts of its launches and events."""
from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MACHINERY = tuple(str(Path(__file__).with_name(f"{name}.py")) for name in (
    "books", "marks", "kernels", "modes", "capture", "cuda"))


class Books:
    """Counts of launches, and of events by (kind, file:line of this project).

    Kinds: `sync`, the host waits for the GPU; `unpinned`, a copy that is asynchronous in name only, because the host's
    memory is pageable; `atomic`, a kernel that adds up in any order. A sync has its cause: `item`, ..."""

    def __init__(self):
        self.launches = 0
        # copies between the host and the GPU
        self.copies = 0
        self.events = Counter()
        # all captured graphs
        self.graphs = []
        # the recording of the capture under way
        self.capture = None
        # the first calls that needed a CUDA context
        self.context = []
        # an error that a later launch raises: [launches until then, error]
        self.failing = None
        # a capture failed while it allocated memory, see cuda.empty_cache
        self.shaken = False
        # a capture failed, and none has succeeded since, see cuda.drawing
        self.locked = False
        # 2: a wait raises RuntimeError
        self.sync_debug = 0

    def note(self, kind: str, what: str) -> None:
        """Count an event. Raises RuntimeError for a wait while a stream is captured, or in sync debug mode."""
        self.events[kind, what, place()] += 1
        if kind == "atomic":
            return
        if self.capture is not None:
            self.refuse(f"operation not permitted when stream is capturing ({what})")
        if kind == "sync" and self.sync_debug == 2:
            raise RuntimeError(f"called a synchronizing CUDA operation ({what})")

    def refuse(self, why: str) -> None:
        """Refuse what a capture forbids; the graph is then invalid."""
        self.capture.spoilt = why
        raise RuntimeError(f"CUDA error: {why}")

    def launch(self) -> None:
        self.launches += 1
        if self.failing:
            self.failing[0] -= 1
            if self.failing[0] < 0:
                error, self.failing = self.failing[1], None
                if self.capture is not None:
                    self.capture.spoilt = str(error)
                raise error

    def needed(self, what: str) -> None:
        """Note a call for which a process without a CUDA context would have to make one."""
        if len(self.context) < 5:
            self.context.append(f"{what} at {place()}")

    def count(self, kind: str) -> int:
        return sum(n for (found, *_), n in self.events.items() if found == kind)

    def lines(self, kind: str) -> dict[str, int]:
        """Return the counts of a kind's events by `what at file:line`."""
        return {f"{what} at {where}": n for (found, what, where), n in sorted(self.events.items()) if found == kind}

    def now(self) -> tuple[int, int]:
        """Return the syncs and the launches so far."""
        return self.count("sync"), self.launches


def place() -> str:
    """Return the innermost running line of this project, file:line."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(f"{ROOT}/") and name not in MACHINERY and ".venv" not in name:
            return f"{Path(name).relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"
