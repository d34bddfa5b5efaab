"""What rank 0 tells the user: a live line on a terminal, a plain line per round elsewhere, and everything in log.txt.

Text that a full disk refuses is lost, since a run does not fail for what it says."""
from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from fedmpi.slurm.job import SlurmJob
from fedmpi.storage.atomic import report_failed_writes
from fedmpi.storage.lock import TIME_FORMAT
from fedmpi.text import printable


class NotebookOutput(Protocol):
    """A cell's output that can be replaced: IPython's DisplayHandle."""

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        """Show other content, by its MIME type."""


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
            with report_failed_writes(log_path):
                self.log = open(log_path, "ab", buffering=0)  # noqa: SIM115  (open as long as the run)
        # in a notebook, the output that shows the present round
        self.cell: NotebookOutput | None = None
        # Open MPI 4 gives every rank a terminal as stdout, wherever the launcher's own output goes, but none as stderr.
        on_terminal = sys.stdout.isatty() and sys.stderr.isatty()
        self.live = on_terminal and SlurmJob.from_env().job_id is None
        self.open_line = False

    def say(self, text: str) -> None:
        """Print lines that stay."""
        text = printable(text)
        if not self.quiet:
            write_stdout(("\n" if self.open_line else "") + text + "\n")
        self.open_line, self.cell = False, None
        self.note(text)

    def note(self, text: str) -> None:
        """Write to the log only."""
        if self.log:
            text, stamp = printable(text), time.strftime(TIME_FORMAT)
            # What was done is in the other files; a run does not fail for its log.
            with suppress(OSError):
                self.log.write("".join(f"{stamp}  {line}\n" for line in text.splitlines()).encode(errors="replace"))

    def round(self, text: str) -> None:
        """Show the state of the run after a round."""
        text = printable(text)
        if self.quiet:
            pass
        elif shell := find_notebook():
            self.show_in_cell(shell, text)
        elif self.live:
            write_stdout("\r\033[K" + text)
            self.open_line = True
        else:
            write_stdout(text + "\n")
        self.note(text)

    def show_in_cell(self, display: Callable[..., NotebookOutput], text: str) -> None:
        """Replace the state that a notebook's cell shows.

        Args:
            display: IPython's function of this name
            text: the state of the run"""
        content = {"text/plain": text}
        if self.cell is None:
            self.cell = display(content, raw=True, display_id=True)
        else:
            self.cell.update(content, raw=True)

    def close(self) -> None:
        """Close the log."""
        if self.log:
            self.log.close()
            self.log = None


def find_notebook() -> Callable[..., NotebookOutput] | None:
    """Return IPython's function `display` if this process is the kernel of a notebook, else None."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return ipython.display.display if ipython and hasattr(shell, "kernel") else None


def write_stdout(text: str) -> None:
    """Write to stdout, and do not fail if that is not possible."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except UnicodeEncodeError:
        # The terminal's encoding lacks a character, perhaps of a folder's name.
        write_stdout(text.encode("ascii", "backslashreplace").decode())
    except BrokenPipeError:
        # After `fedmpi run ... | head` the run goes on, and the log has it all.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    except OSError:
        # A job's output file on a full disk: the text is printed later, or lost (see exit_with).
        pass
