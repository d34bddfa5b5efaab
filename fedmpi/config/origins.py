"""Where a problem of a configuration comes from: its file, what replaces settings of the file, or both together."""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fedmpi.config.overrides import read_overrides
from fedmpi.errors import BadInput


def name_origins(error: BadInput, path: str, of_file: Sequence[str], overrides: Sequence[str] | Mapping[str, object],
                 origin: str) -> BadInput:
    """Return an error of which each line begins with the place that its problem comes from.

    Args:
        path: the file
        of_file: the problems that the file has by itself
        overrides: what replaces its settings
        origin: where these come from; "": nothing is said of it"""
    before = f"{origin}: " if origin else ""
    try:
        keys = [key for key, _ in read_overrides(overrides)]
    except BadInput as unreadable:
        return error.reword(f"{before}{unreadable}")
    both = f"{path} and {origin}: " if origin and keys else f"{path}: "
    return error.reword("\n".join(
        f"{path}: {line}" if line in of_file else f"{before if is_about(line, keys) else both}{line}"
        for line in str(error).splitlines()))


def is_about(line: str, keys: Sequence[str]) -> bool:
    """Say whether a problem is one of these settings, of a section that holds one, or of a part of one."""
    found = re.match(r"[\w.]+", line)
    where = found[0] if found else ""
    return any(f"{key}.".startswith(f"{where}.") or where.startswith(f"{key}.") or line.startswith(f"{key} ")
               for key in keys)
