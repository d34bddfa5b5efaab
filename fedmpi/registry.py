"""Find methods, models, data sets, partitions and measures by name: built in, from entry points, or as `module:Class`.

A third party adds its own by the entry-point groups `fedmpi.methods`, `fedmpi.models`, `fedmpi.datasets`,
`fedmpi.partitions` and `fedmpi.measures`, or a user names a class in a config as `package.module:Class`. Measures are
functions."""
from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from fedmpi.errors import BadInput
from fedmpi.hints import find_close_name
from fedmpi.own_code.failures import blame_own_code, find_own_line

# kind -> the module whose dict BUILT_IN maps names to classes; each method is a file instead
HOMES = {"models": "fedmpi.models.nets", "datasets": "fedmpi.data.sources", "partitions": "fedmpi.data.partitions",
         "measures": "fedmpi.clients.measures"}

# The names of code that is not built in and may be imported, and the remedy in the error for others; None: all may.
_limits: ContextVar[tuple[Collection[str], str] | None] = ContextVar("limits", default=None)


@contextmanager
def refuse_own_code(but: Collection[str] = (), remedy: str = "") -> Iterator[None]:
    """In this context, find and import built-in classes alone: reading what a run left must not run what it names.

    Args:
        but: names that may be imported all the same, since the user has named them.
        remedy: what the error advises."""
    before = _limits.set((but, remedy))
    try:
        yield
    finally:
        _limits.reset(before)


def list_available(kind: str) -> list[str]:
    """List the names of a kind, built-in ones first, then those of installed plug-ins."""
    return sorted(list_built_in(kind)) + sorted(e.name for e in entry_points(group=f"fedmpi.{kind}"))


def list_built_in(kind: str) -> list[str]:
    """List the built-in names of a kind."""
    if kind == "methods":
        folder = Path(__file__).parent / "methods"
        return [f.stem for f in folder.glob("*.py") if not f.stem.startswith("_")]
    return list(importlib.import_module(HOMES[kind]).BUILT_IN)


def find_class(kind: str, name: str) -> type:
    """Return the class of that name; for a measure, and perhaps for a network, the function. Raises BadInput with the
    names that there are."""
    if name in list_built_in(kind):
        if kind == "methods":
            return find_method_class(importlib.import_module(f"fedmpi.methods.{name}"))
        return importlib.import_module(HOMES[kind]).BUILT_IN[name]
    limits = _limits.get()
    if limits and name not in limits[0]:
        raise BadInput(f"{kind[:-1]} {name!r} is not built in: reading what a run left imports no code that the run "
                       f"names{limits[1]}")
    if ":" in name:
        return import_class(kind, name)
    for entry in entry_points(group=f"fedmpi.{kind}", name=name):
        with blame_own_code(f"{kind[:-1]} {name!r} is a plug-in that cannot be loaded",
                            "repair or uninstall its package", always=True):
            return entry.load()
    close = find_close_name(name, list_available(kind))
    hint = f" Did you mean {close}?" if close else ""
    raise BadInput(f"{kind[:-1]} {name!r} is not known; there are {', '.join(list_available(kind))}, "
                   f"or your own as module:Class.{hint}")


def find_class_of_setting(kind: str, name: str, where: str) -> type:
    """Return the class that a setting names. Raises BadInput, whose message begins with the setting `where`."""
    try:
        return find_class(kind, name)
    except BadInput as error:
        raise error.reword(f"{where}: {error}") from error.__cause__


def import_class(kind: str, name: str) -> type:
    """Return the class that `module:Class` names. Raises BadInput, and FaultyCode if the module itself fails."""
    module, _, attribute = name.partition(":")
    # a user's file may lie in the current folder, as with `python -m`
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with blame_own_code(f"{kind[:-1]} {name!r}"):
        try:
            return getattr(importlib.import_module(module), attribute)
        except SyntaxError as error:
            if error.filename is None:
                error.filename, error.lineno = find_zero_byte(module)
            raise
        # ValueError: the name of the module is empty; TypeError: it begins with a dot
        except (ImportError, ValueError, TypeError) as error:
            if find_own_line(error):
                raise
            raise BadInput(f"{kind[:-1]} {name!r}: cannot import {module}: {error}; {suggest_module(name)}") from None
        except AttributeError as error:
            if find_own_line(error):
                raise
            raise BadInput(f"{kind[:-1]} {name!r}: module {module} has no {attribute}; "
                           f"{suggest_attribute(module, attribute)}") from None


def suggest_module(name: str) -> str:
    """Return what helps if `module:Class` could not be imported, perhaps because a file was named in its place."""
    module, _, attribute = name.partition(":")
    path = Path(module)
    if module.endswith(".py") and path.is_file():
        folder = "" if path.parent.samefile(os.getcwd()) else f", and start in {path.parent}"
        return f"a module is named without its folder and .py: write {path.stem}:{attribute}{folder}"
    return f"it must be installed or lie in {os.getcwd()}"


def suggest_attribute(module: str, attribute: str) -> str:
    """Return what helps if an imported module has no such class or function: a close name, if there is one."""
    if "<locals>" in attribute:
        return "define it at the top level of its module or notebook, where the run can find it"
    close = find_close_name(attribute, [name for name, value in vars(sys.modules[module]).items() if callable(value)])
    return f"did you mean {close}?" if close else "name a class or function of this module"


def find_zero_byte(module: str) -> tuple[str | None, int]:
    """Return the file of a module whose text has a zero byte, of which Python names no place, and the line; None if
    the file is not known."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        return None, 0
    return spec.origin, 1 + Path(spec.origin).read_bytes().partition(b"\0")[0].count(b"\n")


def find_method_class(module: ModuleType) -> type:
    """Return the one Method that a file of `methods/` defines."""
    found = [v for v in vars(module).values() if isinstance(v, type) and hasattr(v, "judged_by")
             and v.__module__ == module.__name__ and not v.__name__.startswith("_")]
    return found[-1]
