"""The report at the end: a table by package, the mutants that no test noticed, and a verdict."""
from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tests.mutants.judge import Mutant

# The share of counted mutants that must be noticed, in all and in each package.
LEAST_ALL, LEAST_EACH = .85, .75
KINDS = ("killed", "timeout", "survived", "uncovered")


def rate(mutants: list[Mutant]) -> float:
    """Return the share of counted mutants that was noticed."""
    counted = [m for m in mutants if m.outcome in KINDS]
    return sum(m.outcome in ("killed", "timeout") for m in counted) / len(counted) if counted else 1.


def table(mutants: list[Mutant]) -> str:
    lines = ["| package | drawn | killed | timeout | survived | not covered | equivalent | rate | CPU s each |",
             "|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
    packages = sorted({m.package for m in mutants})
    for name in [*packages, "all"]:
        of = [m for m in mutants if name in ("all", m.package)]
        counts = " | ".join(str(sum(m.outcome == kind for m in of)) for kind in (*KINDS, "equivalent"))
        cpu = sum(m.cpu for m in of) / max(1, len(of))
        lines.append(f"| {name} | {len(of)} | {counts} | {100 * rate(of):.0f} % | {cpu:.1f} |")
    return "\n".join(lines)


def place(mutant: Mutant) -> str:
    new = "\n           ".join(mutant.new.splitlines()) or "(nothing)"
    return f"{mutant.path}:{mutant.line} [{mutant.what}] {mutant.scope}\n      old: {mutant.old}\n      new: {new}"


def listing(mutants: list[Mutant]) -> str:
    """List the mutants that somebody should look at."""
    parts = []
    for kind, head in (("survived", "no test fails"), ("uncovered", "no test runs this line"),
                       ("timeout", "hangs; this counts as noticed"), ("equivalent", "left out")):
        of = sorted((m for m in mutants if m.outcome == kind), key=lambda m: (m.path, m.line))
        if of:
            why = (lambda m: f"\n      {m.by}") if kind in ("timeout", "equivalent") else lambda m: ""
            parts.append("\n".join([f"{head} ({len(of)}):", *(f"  {place(m)}{why(m)}" for m in of)]))
    return "\n\n".join(parts)


def failed(mutants: list[Mutant]) -> list[str]:
    """List the rates that are too low."""
    low = [f"{100 * rate(mutants):.1f} % of all"] if rate(mutants) < LEAST_ALL else []
    for package in sorted({m.package for m in mutants}):
        share = rate([m for m in mutants if m.package == package])
        low += [f"{100 * share:.1f} % of {package}"] if share < LEAST_EACH else []
    return low


def write(path: Path, mutants: list[Mutant], facts: dict):
    """Write everything as JSON, except the texts of whole files."""
    rows = [{key: value for key, value in asdict(m).items() if key != "text"} | {"package": m.package} for m in mutants]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts | {"rate": rate(mutants), "mutants": rows}, indent=1))
