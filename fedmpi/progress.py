"""What rank 0 tells the user: a live line on a terminal, one plain line a round elsewhere, everything in log.txt.

What a full disk refuses of either is lost: a run does not fail for what it says."""
from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from fedmpi.slurm.job import SlurmJob
from fedmpi.storage.atomic import writing


class Progress:
    """Prints and logs. On a terminal the line of the present round is overwritten by the next one's."""

    def __init__(self, log_path=None, quiet: bool = False):
        self.log, self.quiet = None, quiet
        if log_path:      # unbuffered: what a full disk refuses must not be tried again at the end
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
        """Write to the log alone."""
        if self.log:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            with suppress(OSError):      # what was done is in the other files; a run does not fail for its log
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
        if self.log:
            self.log.close()
            self.log = None


def write_stdout(text: str) -> None:
    """Write to stdout what no run and no check must fail for."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:      # `fedmpi run ... | head`: the run goes on, the log has it all
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    except OSError:      # a job's output file on a full disk: printed later, or lost
        pass
