"""The notes of a step, one line of JSON each, written while it works: they are kept, however the step ends."""
from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.gpu.book import plain

T = TypeVar("T")
# No case is begun if less than this is left of the step's time.
SPARE_S = 2.


@dataclass(frozen=True)
class Options:
    """The options of all steps.

    Args:
        device: cpu or cuda
        small: choose the cheapest cases, only to see that steps work
        work: a folder for temporary files"""
    device: str
    small: bool
    work: Path

    def pick(self, whole: T, small: T) -> T:
        return small if self.small else whole


class Notes:
    """Appends the notes of one step to a file."""

    def __init__(self, path: Path, options: Options, deadline: float):
        self.path, self.options, self.deadline = path, options, deadline
        # Cases that an earlier try began are not repeated.
        self.begun = [line["case"] for line in read(path) if "case" in line]

    def left(self) -> float:
        """Return the seconds until this step is ended."""
        return self.deadline - time.monotonic()

    def put(self, section: str, **values) -> None:
        """Note a row or facts of a section."""
        self._write({"section": section, "values": plain(values)})

    def cases(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items for which there is time, and which no earlier try of this step began."""
        waiting = [item for item in items if str(item) not in self.begun]
        for i, item in enumerate(waiting):
            if self.left() < SPARE_S:
                self._write({"late": f"{len(waiting) - i} cases: {item} ..."})
                return
            self._write({"case": str(item)})
            yield item

    def cases_of(self, items: dict[str, T]) -> Iterator[tuple[str, T]]:
        """Yield (name, item) as `cases` does."""
        for name in self.cases(items):
            yield name, items[name]

    def attempt(self, function, *arguments):
        """Return function(*arguments) and "", or None and the error in a line; the traceback goes to the log.

        Raises if the error left the GPU unusable: another process then goes on with the next case."""
        try:
            return function(*arguments), ""
        except Exception as error:
            traceback.print_exc()
            self.touch_gpu()
            return None, first_line(error)

    def touch_gpu(self) -> None:
        if self.options.device == "cuda":
            import torch
            torch.zeros(1, device="cuda").add_(1).item()

    def _write(self, line: dict) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[dict]:
    """Return a step's notes, without a last line that is not complete."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200]
