"""A case: the files of a folder, and the commands that are given there."""
from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.reference import Reference

# Kinds in the order in which the numbers of cases go round; so any hundred cases have the same mixture.
ROUND = ("config", "damage", "command", "data", "config", "own code", "damage", "command", "config", "damage",
         "data", "config", "own code", "command", "damage", "config", "data", "damage", "command", "config")
KINDS = tuple(dict.fromkeys(ROUND))
# One case in so many is given to a new process, and one in three of those to mpiexec with two ranks if it is a run.
REAL_EVERY = 30


@dataclass
class Case:
    """What is done in the folder of a case, and what it must lead to.

    Args:
        what: a few words for the report.
        commands: the words after `fedmpi`, of commands that follow each other.
        ranks: MPI ranks of each command.
        promise: what must be true if the last command ends with 0 (see oracle.py): "" for nothing, "digest", "history",
            "export", or "refused" if no end with 0 is allowed.
        environment: variables of the commands.
        outputs: files that the commands are told to write, which may therefore change.
        own_code: a module of the user is at fault; its name must be said, and a traceback may be in the log.
        between: is called with the folder after the first command."""
    what: str
    commands: list[list[str]]
    ranks: int = 1
    promise: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    own_code: str = ""
    between: Callable[[Path], None] | None = None


def kind_of(number: int) -> str:
    """Return the kind of a case."""
    return ROUND[number % len(ROUND)]


def is_real(number: int) -> bool:
    """Say whether a case is given to new processes in place of forks."""
    return number % REAL_EVERY == REAL_EVERY - 1


def build(seed: int, number: int, folder: Path, reference: Reference) -> Case:
    """Write the files of a case into a new folder; return the case. The same seed and number give the same case."""
    from tests.fuzz import command_lines, configurations, damages, data_files, own_code
    kind, draw = kind_of(number), random.Random(f"{seed} {number}")
    builders = {"config": configurations.build, "command": command_lines.build, "data": data_files.build,
                "damage": damages.build, "own code": own_code.build}
    folder.mkdir(parents=True)
    for name in ("tmp", "bin"):
        (folder / name).mkdir()
    # It takes the place of a real one.
    fake = folder / "bin" / "sbatch"
    fake.write_text("#!/bin/sh\ncat > /dev/null\necho 123\n")
    fake.chmod(0o755)
    (folder / "canary.txt").write_text("a file of the user\n")
    shutil.copy(reference.folder / "few.npz", folder)
    case = builders[kind](draw, folder, reference)
    if draw.random() < .1:
        case.environment["PYTHONIOENCODING"] = "ascii"
    if is_real(number) and number // REAL_EVERY % 3 == 0 and case.commands[0][:1] == ["run"]:
        case.ranks = 2
    return case
