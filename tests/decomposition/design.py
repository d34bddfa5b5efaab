"""Covering designs: a table of runs in which every pair of values of two factors occurs at least once."""
from __future__ import annotations

from itertools import combinations


def pairs_of(row: dict) -> set:
    """Return the pairs of values that a run has, ((factor, value), (factor, value)) each."""
    return set(combinations(row.items(), 2))


def possible_pairs(factors: dict[str, tuple], allowed) -> set:
    """Return the pairs that some allowed run has; `allowed(row)` judges rows in which some factors may be missing."""
    return {(a, b) for (f, us), (g, vs) in combinations(factors.items(), 2)
            for a in ((f, u) for u in us) for b in ((g, v) for v in vs) if allowed(dict((a, b)))}


def cover(factors: dict[str, tuple], allowed=lambda row: True, turn: int = 0) -> list[dict]:
    """Return runs, {factor: value} each, that cover all pairs. They are chosen greedily, the same ones at every call.

    Every run starts from a missing pair and takes, factor by factor, the value that covers most of the pairs that are
    still missing. `turn` rotates the choice among equals, so that tables of several turns cover more triples."""
    left, rows = possible_pairs(factors, allowed), []
    while left:
        row = dict(min(left, key=lambda pair: position(factors, pair, turn)))
        for factor, values in factors.items():
            if factor in row:
                continue
            tried = [{**row, factor: v} for v in rotated(values, turn + len(rows))]
            fits = [one for one in tried if completable(one, factors, allowed)]
            row = max(fits, key=lambda one: len(left & pairs_of(ordered(one, factors))))
        row = ordered(row, factors)
        rows.append(row)
        left -= pairs_of(row)
    return rows


def completable(row: dict, factors: dict[str, tuple], allowed) -> bool:
    """Say whether there are values for the missing factors with which a run is allowed."""
    if not allowed(row):
        return False
    missing = next((factor for factor in factors if factor not in row), None)
    return missing is None or any(completable({**row, missing: v}, factors, allowed) for v in factors[missing])


def position(factors: dict[str, tuple], pair, turn: int) -> list[int]:
    return [n for factor, value in pair for n in ([*factors].index(factor),
                                                  (factors[factor].index(value) + turn) % len(factors[factor]))]


def ordered(row: dict, factors: dict[str, tuple]) -> dict:
    return {factor: row[factor] for factor in factors if factor in row}


def rotated(values: tuple, by: int) -> tuple:
    by %= len(values)
    return values[by:] + values[:by]
