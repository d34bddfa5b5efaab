"""The fingerprint of the user's own code: a sha256 of the bytes of every file that it consists of, by module.

These files are that of the module itself, those of the packages that the module lies in, and, transitively, all files
beside them that their text imports. Names of modules stand for places, so that a folder may be moved. Of a package in
an installation such as site-packages only files of the same package count, and other libraries are left out. A library
that is not a plug-in, such as torch in `torch.nn:Linear`, counts by its version. A file inside a zip counts as the
whole zip. Code without a file, as a notebook has it, has None for a hash here; `without_file` tells what it does.

What is not seen: imports of names that are worked out when they run, and files that are read as data."""
from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

from fedmpi.errors import BadInput
from fedmpi.own_code.places import (
    PACKAGE_NAME,
    holds_packages,
    is_library,
    is_own_module,
    list_plug_ins,
    show_relative_path,
)

# A hash by module; None for code without a file.
Fingerprint = dict[str, str | None]
# So many characters of a hash are shown.
SHOWN_CHARACTERS = 12
# What stands in place of the hash of a library begins so.
VERSION = "version "

# What each module was when this process first looked at it: the import that made it, and its hash.
_first_seen: dict[str, tuple[object, str]] = {}


def hash_own_code(things: Iterable[object]) -> Fingerprint:
    """Return the fingerprint of classes, functions or modules that a configuration names; built-in ones are left out.

    Raises BadInput if a file was changed after this process first looked at it and was not imported again, since what
    runs is not what the file says."""
    found: Fingerprint = {}
    for name in sorted({name for thing in things for name in find_home_modules(thing)}):
        found |= hash_module(name)
    for name, value in found.items():
        if value is not None and not value.startswith(VERSION):
            refuse_stale(name, value)
    return dict(sorted(found.items()))


def find_home_modules(thing: object) -> set[str]:
    """Return the names of the modules in which a thing is defined: of a class also those of its bases that are the
    user's own. A text is the name of a module itself."""
    if isinstance(thing, partial):
        return find_home_modules(thing.func)
    if isinstance(thing, str):
        names = {thing}
    elif isinstance(thing, type):
        names = {thing.__module__} | {base.__module__ for base in thing.__mro__ if is_own_module(base.__module__)}
    else:
        names = {getattr(thing, "__module__", None) or type(thing).__module__}
    return {name for name in names if name.partition(".")[0] not in (PACKAGE_NAME, "builtins")}


def hash_module(name: str) -> Fingerprint:
    """Return the fingerprint of a module that was imported."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None:
        return {name: None}
    path, top = Path(file), name.partition(".")[0]
    if is_library(path) and top not in list_plug_ins():
        return {top: f"{VERSION}{read_version(top)}"}
    if not path.is_file():
        archive = next((folder for folder in path.parents if folder.is_file()), None)
        return {name: None if archive is None else hash_file(archive)}
    if name == "__main__":
        root, start = path.parent, {"__main__": path}
    else:
        depth = name.count(".") + (path.stem == "__init__")
        root, start = path.parents[depth], {name: path}
    return hash_tree(root, start, top if holds_packages(root) else "")


def hash_tree(root: Path, start: dict[str, Path], only: str) -> Fingerprint:
    """Return the hashes of some modules and of all modules below a folder that they import, transitively.

    Args:
        root: the folder from which modules are imported.
        start: modules and their files.
        only: the package to stay in; "": any."""
    found: Fingerprint = {}
    waiting = dict(start)
    for name in start:
        waiting |= find_files(root, name)
    while waiting:
        name, path = waiting.popitem()
        found[name] = hash_file(path)
        for imported in list_imports(path, name):
            top = imported.partition(".")[0]
            if top != PACKAGE_NAME and only in ("", top):
                waiting |= {n: p for n, p in find_files(root, imported).items() if n not in found}
    return found


def find_files(root: Path, name: str) -> dict[str, Path]:
    """Return the files below a folder that the import of a dotted name executes, by module: packages, then the module.
    The last parts of the name may be attributes of a module."""
    found, parts = {}, name.split(".")
    for depth in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:depth])
        for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if path.is_file():
                found[".".join(parts[:depth])] = path
                break
    return found


def list_imports(path: Path, name: str) -> Iterator[str]:
    """Yield the dotted names that a file imports anywhere in its text; of code that is compiled, none."""
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes())
    # Such a file cannot be imported either.
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(filter(None, [find_base(path, name, node.level), node.module]))
            # A script in no package may have dots, too, where Python fails.
            yield from (".".join(filter(None, [start, alias.name])) for alias in node.names)


def find_base(path: Path, name: str, level: int) -> str:
    """Return the package that the dots of `from ..a import b` mean in a module."""
    parts = name.split(".")
    return ".".join(parts[:len(parts) - level + (path.name == "__init__.py")]) if level else ""


def hash_file(path: Path) -> str:
    """Return the sha256 of a file's bytes. Raises BadInput if it cannot be read any more."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BadInput(f"{show_relative_path(str(path))}: cannot be read, though it was imported: {error.strerror}; "
                       "put the file back") from None


def read_version(package: str) -> str:
    """Return the version of the installed library that a package belongs to; that of Python for its own library."""
    with suppress(PackageNotFoundError):
        return version(package)
    # The name of the distribution may be another one. This look at all of them takes a while.
    with suppress(PackageNotFoundError, LookupError):
        return version(packages_distributions()[package][0])
    return sys.version.partition(" ")[0]


def refuse_stale(name: str, value: str) -> None:
    """Raise BadInput if a module's file has changed since this process looked at it first, and was not imported again.
    """
    made_by = getattr(sys.modules.get(name), "__spec__", None)
    if made_by is None:
        return
    before = _first_seen.setdefault(name, (made_by, value))
    if before[0] is not made_by:
        # It was imported again.
        _first_seen[name] = (made_by, value)
    elif before[1] != value:
        raise BadInput(f"module {name} was changed after this Python had imported it, so what would run may not be "
                       f"what its file says; start Python again, or call importlib.reload({name}) and import the class "
                       "again (%autoreload is not enough)")


def join_hashes(found: Mapping[str, Iterable[str]]) -> str:
    """Return what has which hash, as a text: the names of each hash behind it."""
    return " and ".join(f"{shorten_hash(value)} ({'; '.join(names)})" for value, names in found.items())


def shorten_hash(value: object) -> str:
    """Return a hash as it is shown. It may come from a file, so it may be anything."""
    if not isinstance(value, str):
        return "unknown"
    return value if value.startswith(VERSION) else value[:SHOWN_CHARACTERS]
