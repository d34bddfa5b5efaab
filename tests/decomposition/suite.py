"""The suite chooses runs, performs them, compares each with its reference and reports differences."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.decomposition import books
from tests.decomposition.cases import FACTORS, allowed, promised, reference, starts
from tests.decomposition.design import cover
from tests.decomposition.ranks import expected


@dataclass(frozen=True)
class Finding:
    """A run compared with its reference. `differs` names the first value that differs, or the failure."""
    method: str
    row: dict
    differs: str | None
    digest: str
    hash: str
    promised: bool


class Refused(str):
    """The line with which a run was refused, as attacked ones may be: then its reference must be, too."""


class Suite:
    """Runs of methods in a folder; `perform` starts them (see ranks.py)."""

    def __init__(self, folder: Path, config: Path, perform):
        self.folder, self.config, self.perform = folder, config, perform
        # (method, row) -> the results of a run, or the text of its failure
        self.known = {}
        self.started = 0

    def read(self, method: str, rows: list[dict]) -> list:
        """Return the results of some rows' runs, performing those that are not known yet."""
        new = [row for row in rows if key(method, row) not in self.known]
        new = list({key(method, row): row for row in new}.values())
        outs = [self.folder / f"{method}-{len(self.known) + i}" for i in range(len(new))]
        planned = [starts(method, row, self.config.parent, str(out)) for row, out in zip(new, outs, strict=True)]
        failed = {}
        for turn in range(2):
            todo = [(i, plan[turn]) for i, plan in enumerate(planned) if len(plan) > turn and i not in failed]
            self.started += len(todo)
            for (i, start), ended in zip(todo, self.perform([start for _, start in todo]), strict=True):
                if ended.code != expected(start):
                    failed[i] = Refused(ended.refusal) if ended.refusal else (
                        f"start {turn + 1} on {start.ranks} ranks ended with {ended.code}")
        for i, (row, out) in enumerate(zip(new, outs, strict=True)):
            self.known[key(method, row)] = failed.get(i) or books.read(out)
        return [self.known[key(method, row)] for row in rows]

    def compare(self, method: str, rows: list[dict]) -> list[Finding]:
        """Perform the runs of some rows and their references; return a finding for each row."""
        both = self.read(method, [*rows, *map(reference, rows)])
        found = [finding(method, row, *pair) for row, pair in zip(rows, zip(both[:len(rows)], both[len(rows):],
                                                                              strict=True), strict=True)]
        # The number of threads is not a decomposition; runs that differ are compared with a reference with as many.
        odd = [i for i, one in enumerate(found) if one.differs and one.row["threads"] > 1]
        same = self.read(method, [reference(rows[i], rows[i]["threads"]) for i in odd])
        for i, other in zip(odd, same, strict=True):
            again = finding(method, rows[i], self.known[key(method, rows[i])], other)
            found[i] = again if again.differs else finding(method, rows[i], *self.read(
                method, [rows[i], reference(rows[i])]), promise=False)
        return found


def finding(method: str, row: dict, left, wanted, promise: bool = True) -> Finding:
    if isinstance(left, Refused) and isinstance(wanted, Refused):
        return Finding(method, row, None if left == wanted else f"refusal {left!r}, not {wanted!r},", "", "", True)
    if isinstance(left, str) or isinstance(wanted, str):
        return Finding(method, row, left if isinstance(left, str) else f"reference: {wanted}", "", "", True)
    return Finding(method, row, books.first_difference(left, wanted), left["digest"], books.digest(left),
                   promise and promised(row))


def key(method: str, row: dict) -> tuple:
    return method, *row.items()


def design(method: str, config: Path, factors: dict = FACTORS, turn: int = 0) -> list[dict]:
    """Return runs of a method in which every pair of values that fedmpi takes together occurs."""
    return cover(factors, allowed(method, config), turn)


def tables(found: list[Finding]) -> str:
    """Return a table: factor value -> runs, mismatches, and differences without a promise."""
    lines = [f"{'factor':10s} {'value':18s} {'runs':>5s} {'mismatches':>11s} {'unpromised':>11s} {'differ':>7s}"]
    for factor in FACTORS:
        for value in FACTORS[factor]:
            if not (mine := [one for one in found if one.row[factor] == value]):
                continue
            bound, free = ([one for one in mine if one.promised == p] for p in (True, False))
            lines.append(f"{factor:10s} {value!s:18s} {len(bound):5d} {differing(bound):11d} {len(free):11d} "
                         f"{differing(free):7d}")
    return "\n".join(lines)


def differing(found: list[Finding]) -> int:
    return sum(one.differs is not None for one in found)


def broken(one: Finding) -> bool:
    """Say whether a run broke the contract."""
    return one.promised and one.differs is not None


def line(one: Finding) -> str:
    return f"{one.method}: {one.differs} differs: {', '.join(f'{k} {v}' for k, v in one.row.items())}"
