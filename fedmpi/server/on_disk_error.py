"""What a run does if the disk refuses what it writes: `checkpoint.failure` says stop or continue."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedmpi.errors import StorageError
from fedmpi.json_values import JsonObject
from fedmpi.progress import Progress


class DiskErrorPolicy:
    """The policy of a run, and the rounds after which something could not be written (rank 0)."""

    def __init__(self, failure: str, progress: Progress):
        self.failure, self.progress = failure, progress
        # rounds after which something could not be written
        self.refused: list[int] = []

    @contextmanager
    def handled(self, round: int) -> Iterator[None]:
        """Let a StorageError end the run, or only warn of it. What was refused is tried again when the next is due."""
        try:
            yield
        except StorageError as error:
            if self.failure == "stop":
                raise
            self.refused.append(round)
            self.progress.say(f"warning: round {round}: {error} (the run goes on and tries again, as "
                              "checkpoint.failure = continue says)")

    def facts(self) -> JsonObject:
        """Return what result.json says of it: nothing if all was written."""
        return {"rounds_refused_by_disk": sorted(set(self.refused))} if self.refused else {}

    def summary(self) -> str:
        """Return a line for the end of a run, "" if all was written."""
        if not self.refused:
            return ""
        return (f"\nwarning: the disk refused a checkpoint or a measure {len(self.refused)} times, last after round "
                f"{self.refused[-1]}; log.txt says which")
