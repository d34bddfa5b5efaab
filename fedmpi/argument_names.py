"""Errors that reach a Python program name arguments, as out= and resume='auto', where commands have options.

All messages are written for the command line; they are translated where they leave fedmpi's functions."""
from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedmpi.errors import FedmpiError

NAMES = "out|resume|time-limit|ranks|client|own-code|at-once"
# Pattern -> what a Python program would write; the first ones are the narrowest.
ARGUMENTS = {
    r"--out (.+?) --resume auto\b": r"out='\1', resume='auto'",
    r"--resume auto\b": "resume='auto'",
    r"--accept-changed-code\b": "accept_changed_code=True",
    r"--own-code\b": "own_code=True",
    # an option with its value: at the start of the message, or a number
    rf"(?m)(?:^|(?<=: ))--({NAMES}) (?=\S)": r"--\1=",
    rf"--({NAMES}) (?=\d)": r"--\1=",
    rf"--({NAMES})\b( =|=)?": r"\1="}


@contextmanager
def name_arguments() -> Iterator[None]:
    """Name arguments in place of options in an error of this context that is for the user."""
    try:
        yield
    except FedmpiError as error:
        error.args = (translate_options(str(error)), *error.args[1:])
        raise


def translate_options(text: str) -> str:
    """Return a message about options of a command as one about arguments of a function."""
    for pattern, argument in ARGUMENTS.items():
        text = re.sub(pattern, argument, text)
    for name in NAMES.split("|"):
        text = text.replace(f"{name}=", f"{name.replace('-', '_')}=")
    return text
