"""Where the user's own code failed: errors become one line with the file and the line, and keep their cause.

The traceback of the cause goes to the run's log.txt."""
from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from fedmpi.errors import FaultyCode, FedmpiError, StorageError
from fedmpi.own_code.places import is_library, list_plug_ins, show_relative_path

# More of a message is cut off.
MESSAGE_CHARACTERS = 300


@contextmanager
def blame_own_code(what: str = "", remedy: str = "repair it", always: bool = False, place: str = "") -> Iterator[None]:
    """Turn an error of the user's own code in this context into FaultyCode; others pass.

    Args:
        what: what was called, for the message.
        remedy: what the user can do.
        always: every error is one of the user's code, even if none of its lines is in the traceback: a function was
            called that has other arguments, for example.
        place: what is named then in place of such a line, as "FILE:LINE: "."""
    try:
        yield
    except FedmpiError:
        raise
    except BaseException as error:
        if is_ctrl_c(error) or isinstance(error, GeneratorExit) or not (always or find_own_line(error)):
            raise
        where = "" if find_own_line(error) else place
        raise FaultyCode(f"{what + ': ' if what else ''}{where}{describe_failure(error)}; {remedy}") from error


def describe_failure(error: BaseException) -> str:
    """Return "FILE:LINE: KIND: MESSAGE" of an error, without the place if none of its lines is the user's own."""
    place = find_own_line(error)
    return f"{place}: {describe_error(error)}" if place else describe_error(error)


def describe_error(error: BaseException) -> str:
    """Return the kind of an error and its message in one line."""
    try:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
    # The user's own class of errors may fail, too.
    except Exception:
        said = ""
    said = " ".join(str(said).split())
    if len(said) > MESSAGE_CHARACTERS:
        said = f"{said[:MESSAGE_CHARACTERS]}..."
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def find_own_line(error: BaseException) -> str:
    """Return the innermost line of the user's own code in an error as "FILE:LINE"; "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename, ""):
        return f"{show_relative_path(error.filename)}:{error.lineno}"
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        if is_own(frame.f_code.co_filename, frame.f_globals.get("__name__") or ""):
            return f"{show_relative_path(frame.f_code.co_filename)}:{line}"
    return ""


def is_own(file: str, module: str) -> bool:
    """Say whether code is the user's own, by its file and its module."""
    # Code that was made at run time has a name in angle brackets; code of a notebook is that of `__main__`.
    if file.startswith("<"):
        return module == "__main__" and file != "<frozen runpy>"
    return not is_library(Path(file)) or module.partition(".")[0] in list_plug_ins()


def is_ctrl_c(error: BaseException) -> bool:
    """Say whether the user pressed Ctrl-C. Otherwise code has raised KeyboardInterrupt by itself."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler or was_raised_by_handler(error.__traceback__)


def was_raised_by_handler(steps: TracebackType | None) -> bool:
    """Say whether the innermost function of a traceback is the one that fedmpi calls at a second Ctrl-C."""
    names = [(frame.f_globals.get("__name__"), frame.f_code.co_name) for frame, _ in traceback.walk_tb(steps)]
    return bool(names) and names[-1] == ("fedmpi.process_state", "interrupt")


def format_cause(error: BaseException) -> str:
    """Return the traceback of the error of the user's code that is behind this one; "" if there is none."""
    cause = error.__cause__ if isinstance(error, FedmpiError) and not isinstance(error, StorageError) else None
    return "".join(traceback.format_exception(cause)) if cause else ""
