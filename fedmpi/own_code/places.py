"""Which code is the user's own: neither part of fedmpi, nor of Python, nor of an installed library.

Plug-ins are the user's own code, too, wherever they are installed."""
from __future__ import annotations

import sys
import sysconfig
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType

PACKAGE, PACKAGE_NAME = Path(__file__).resolve().parent.parent, __name__.partition(".")[0]
GROUPS = ("fedmpi.methods", "fedmpi.models", "fedmpi.datasets", "fedmpi.partitions", "fedmpi.measures")
# Folders of these names hold installed packages.
INSTALLATIONS = ("site-packages", "dist-packages")


@cache
def list_python_folders() -> tuple[Path, ...]:
    """Return the folders of Python's own library."""
    return tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")})


@cache
def holds_packages(folder: Path) -> bool:
    """Say whether packages are installed in a folder: it has such a name, or metadata as pip writes them."""
    return folder.name in INSTALLATIONS or any(folder.glob("*.dist-info"))


def is_library(path: Path) -> bool:
    """Say whether a file belongs to fedmpi, to Python or to an installed package."""
    path = path.resolve()
    within = (PACKAGE, *list_python_folders())
    return any(map(path.is_relative_to, within)) or any(holds_packages(folder) for folder in path.parents)


def list_plug_ins() -> set[str]:
    """Return the names of the packages that have entry points for fedmpi."""
    installed = entry_points()
    return {entry.value.partition(":")[0].partition(".")[0].strip() for group in GROUPS
            for entry in installed.select(group=group)}


def is_built_in(thing: object) -> bool:
    """Say whether a class or a function is part of fedmpi."""
    return str(getattr(thing, "__module__", "")).partition(".")[0] == PACKAGE_NAME


def is_own_module(name: str) -> bool:
    """Say whether a module that was imported is the user's own. One without a file is, if it is `__main__`."""
    top = name.partition(".")[0]
    if top == PACKAGE_NAME:
        return False
    path = getattr(sys.modules.get(name), "__file__", None)
    return name == "__main__" if path is None else not is_library(Path(path)) or top in list_plug_ins()


def describe_definition(thing: object) -> str:
    """Return "FILE:LINE: " of a function or of a function of a class; "" if it has no text."""
    code = getattr(thing, "__code__", None)
    return f"{show_relative_path(code.co_filename)}:{code.co_firstlineno}: " if isinstance(code, CodeType) else ""


def show_relative_path(path: str) -> str:
    """Return a path as seen from the current folder, if it lies in there."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return path
