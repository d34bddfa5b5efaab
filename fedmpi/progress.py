"""What rank 0 tells the user: a live line on a terminal, a plain line per round elsewhere, and everything in log.txt.

Text that a full disk refuses is lost, since a run does not fail for what it says."""
from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from fedmpi.slurm.job import SlurmJob
from fedmpi.storage.atomic import writing


class Progress:
    """Prints and logs. On a terminal the line of the present round is overwritten by the next one's."""

    def __init__(self, log_path: Path | None = None, quiet: bool = False):
        """Open the log.

        Args:
            log_path: the log; None: there is none.
            quiet: print nothing."""
        self.log: IO[bytes] | None = None
        self.quiet = quiet
        if log_path:
            # Unbuffered: what a full disk refuses must not be tried again at the end.
            with writing(log_path):
                self.log = open(log_path, "ab", buffering=0)  # noqa: SIM115  (open as long as the run)
        self.live = sys.stdout.isatty() and SlurmJob.from_env().job_id is None
        self.open_line = False

    def say(self, text: str) -> None:
        """Print lines that stay."""
        if not self.quiet:
            write_stdout(("\n" if self.open_line else "") + text + "\n")
        self.open_line = False
        self.note(text)

    def note(self, text: str) -> None:
        """Write to the log only."""
        if self.log:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            # What was done is in the other files; a run does not fail for its log.
            with suppress(OSError):
                self.log.write("".join(f"{stamp}  {line}\n" for line in text.splitlines()).encode(errors="replace"))

    def round(self, text: str) -> None:
        """Show the state of the run after a round."""
        if self.quiet:
            pass
        elif self.live:
            write_stdout("\r\033[K" + text)
            self.open_line = True
        else:
            write_stdout(text + "\n")
        self.note(text)

    def close(self) -> None:
        """Close the log."""
        if self.log:
            self.log.close()
            self.log = None


def write_stdout(text: str) -> None:
    """Write to stdout, and do not fail if that is not possible."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # After `fedmpi run ... | head` the run goes on, and the log has it all.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    except OSError:
        # A job's output file on a full disk: the text is printed later, or lost.
        pass
