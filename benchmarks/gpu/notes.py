"""What a step writes down while it works, a line of JSON for each note: what it has found is kept whatever ends it."""
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
SPARE_S = 2.      # of a step's time: no case is begun with less


@dataclass(frozen=True)
class Options:
    """What all steps are told."""
    device: str           # cpu or cuda
    small: bool           # the cheapest of everything, to see that it works
    work: Path            # a folder for files that nobody needs afterwards

    def pick(self, whole: T, small: T) -> T:
        return small if self.small else whole


class Notes:
    """The notes of one step, in a file to which they are appended."""

    def __init__(self, path: Path, options: Options, deadline: float):
        self.path, self.options, self.deadline = path, options, deadline
        self.begun = [line["case"] for line in read(path) if "case" in line]      # of earlier tries: not again

    def left(self) -> float:
        """Return the seconds until this step is ended."""
        return self.deadline - time.monotonic()

    def put(self, section: str, **values) -> None:
        """Note a row of a section, or facts."""
        self._write({"section": section, "values": plain(values)})

    def cases(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items for which there is time, and at which no earlier try of this step died."""
        waiting = [item for item in items if str(item) not in self.begun]
        for i, item in enumerate(waiting):
            if self.left() < SPARE_S:
                self._write({"late": f"{len(waiting) - i} cases: {item} ..."})
                return
            self._write({"case": str(item)})
            yield item

    def cases_of(self, items: dict[str, T]) -> Iterator[tuple[str, T]]:
        """The same for items with names."""
        for name in self.cases(items):
            yield name, items[name]

    def attempt(self, function, *arguments):
        """Return function(*arguments) and "", or None and what went wrong; the whole error goes to the log.

        Raises where the GPU is of no use any more: another process goes on with the next case."""
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
    """Return the whole lines of a step's notes."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200]
