"""What became of the user's own code between two starts of a run, and between the ranks of one."""
from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TypedDict

from fedmpi.errors import BadInput
from fedmpi.own_code.fingerprint import Fingerprint, join_hashes, shorten_hash
from fedmpi.own_code.places import show_relative_path


class CodeChange(TypedDict):
    """A module, or `module:Class` without a file, that was changed while its run was stopped: after which round, and
    its hashes."""
    after_round: int
    module: str
    then: str | None
    now: str | None


def list_changes(then: Fingerprint, now: Fingerprint, after_round: int) -> list[CodeChange]:
    """Return the modules whose hashes differ, and classes without a file. What has no hash is not known to differ."""
    pairs = {name: (find_hash(then, name), find_hash(now, name)) for name in sorted(then.keys() | now.keys())}
    return [CodeChange(after_round=after_round, module=name, then=then.get(name), now=now.get(name))
            for name, (old, new) in pairs.items() if old != new and None not in (old, new)]


def find_hash(found: Fingerprint, name: str) -> str | None:
    """Return the hash of a module or of `module:Class`, "" if it is not there. It is None, for unknown, for a class
    whose module has None, as in checkpoints of versions that had no hashes of code without a file."""
    if name in found:
        return found[name]
    module = name.partition(":")[0]
    return None if found.get(module, "") is None else ""


def leave_out_measures(changes: list[CodeChange], needed: Fingerprint, had_some: bool) -> list[CodeChange]:
    """Return the changes between two starts, but for modules that only measures have brought or taken away.

    Args:
        needed: the code of this start, without that of measures if they are others than before.
        had_some: whether the start before had other measures, and some of the user's own."""
    return [change for change in changes if not (
        change["then"] is None and change["module"] not in needed or change["now"] is None and had_some)]


def describe_change(change: CodeChange) -> str:
    """Return the file, or the module if there is none, and what became of it."""
    name = change["module"]
    if change["now"] is None:
        return f"{name} (was {shorten_hash(change['then'])}, is not part of it any more)"
    if change["then"] is None:
        return f"{name_file(name)} (was not part of it, is {shorten_hash(change['now'])})"
    return f"{name_file(name)} (was {shorten_hash(change['then'])}, is {shorten_hash(change['now'])})"


def name_file(module: str) -> str:
    """Return the file of a module that was imported; else the module's name."""
    path = getattr(sys.modules.get(module), "__file__", None)
    return show_relative_path(path) if path else module


def warn_of_changes(changes: list[CodeChange], since: str) -> list[str]:
    """Return a line that names every file, if there are changes.

    Args:
        since: what was made before them."""
    return [f"own code has changed since {since}: {', '.join(map(describe_change, changes))}"] if changes else []


def refuse_changes(changes: list[CodeChange], what: str, remedy: str) -> None:
    """Raise BadInput, which names every file, if there are changes.

    Args:
        what: what was made before the changes, as `since` of `warn_of_changes`.
        remedy: what the user can do."""
    for said in warn_of_changes(changes, what):
        raise BadInput(f"{said}; {remedy}")


def refuse_other_code(mine: Fingerprint, of_rank_0: Fingerprint) -> None:
    """Raise BadInput if this rank has other code than rank 0."""
    differ = [name for name in sorted(mine.keys() | of_rank_0.keys())
              if mine.get(name, "") != of_rank_0.get(name, "")]
    if differ:
        listed = ", ".join(f"{name_file(name)} is {shorten_hash(mine.get(name))} here and "
                           f"{shorten_hash(of_rank_0.get(name))} there" for name in differ)
        raise BadInput(f"own code is another one than rank 0's: {listed}; give all nodes the same files")


def describe_accepted(changes: list[CodeChange]) -> list[str]:
    """Return a line for each change that a run accepted. `changes` are read from a file, so nothing is taken for sure.
    """
    return [f"own code changed after round {change.get('after_round')} and was accepted: {change.get('module')} "
            f"(from {shorten_hash(change.get('then'))} to {shorten_hash(change.get('now'))})"
            for change in changes if isinstance(change, dict)]


def list_code_differences(fingerprints: Mapping[str, object]) -> list[str]:
    """Return a line for each module that has different hashes in runs that are shown as one.

    Args:
        fingerprints: `own_code` of each run, by the run's name, as read from files, so nothing is taken for sure."""
    known = {run: found for run, found in fingerprints.items() if isinstance(found, dict)}
    lines = []
    for module in dict.fromkeys(module for found in known.values() for module in found):
        runs: dict[str, list[str]] = {}
        for run, found in known.items():
            if isinstance(found.get(module), str):
                runs.setdefault(found[module], []).append(run)
        if len(runs) > 1:
            lines.append(f"own code differs between finished runs: {module} is {join_hashes(runs)}")
    return lines


def describe_unknown_code(found: Fingerprint, said: str = "a change of it will not be noticed if the run is "
                          "continued") -> list[str]:
    """Return a line that names code whose fingerprint is not known, and what that means, if there is some."""
    unknown = [name for name, value in found.items() if value is None]
    return [f"own code without a file, as in a notebook ({', '.join(unknown)}): {said}"] if unknown else []
