"""Entry point of the command `fedmpi` and of `python -m fedmpi`."""
from __future__ import annotations

import errno
import io
import os
import signal
import sys


def main() -> None:
    """Run the command line."""
    try:
        from fedmpi.cli import app
        from fedmpi.text import drop_refused_text, print_failure
    # Ctrl-C while the libraries load: nothing has begun that would have to end in order.
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    for name in ("stdout", "stderr"):
        # Closed by `>&-` or a daemon. The next file would get its number, and what libraries print.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (open as long as the process)
    # What the terminal's encoding lacks is shown as an escape; names of files may hold any character.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            app()
        finally:
            if not sys.stdout.closed:
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        drop_refused_text(sys.stdout)
        # Who closes a pipe has read enough.
        if error.errno != errno.EPIPE:
            print_failure(f"fedmpi: standard output cannot be written: {error.strerror}; free some space, or send it "
                          "elsewhere")
        sys.exit(1)
    finally:
        drop_refused_text(sys.stderr)


if __name__ == "__main__":
    main()
