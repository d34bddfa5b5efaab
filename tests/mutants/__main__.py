"""The command; `python -m tests.mutants --help` lists its options."""
from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from pathlib import Path

from tests.mutants import drawing, equivalent, report
from tests.mutants.choice import Choice
from tests.mutants.judge import Copy, Mutant, Pool
from tests.mutants.suite import Suite, find_test_files

ROOT = Path(__file__).parent.parent.parent


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Plant faults into fedmpi and see "
                                     "whether the suite notices. Exit code 1: it noticed too few.")
    parser.add_argument("--package", nargs="+", default=[], help="folders under fedmpi/, `root` for the files in it")
    parser.add_argument("--count", type=int, default=300, help="mechanical mutants (%(default)s)")
    parser.add_argument("--seed", type=int, help="repeat a draw; without it, one that nobody has seen")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (%(default)s)")
    parser.add_argument("--own", action="store_true", help="the hand-written faults of faults/ instead")
    parser.add_argument("--check", action="store_true", help="only say whether all hand-written faults still apply")
    parser.add_argument("--list", action="store_true", help="only list what would be planted")
    parser.add_argument("--only", metavar="TEXT", help="only those whose `path:line` or definition contains this")
    parser.add_argument("--tests", nargs="+", default=[], help="know only these test files or folders")
    parser.add_argument("--budget", type=float, default=45, help="CPU seconds of tests for a mutant (%(default)s)")
    parser.add_argument("--patience", type=float, default=15, help="a mutant hangs if it takes so many CPU seconds "
                        "more than four times what its tests take without it (%(default)s)")
    parser.add_argument("--map", action="store_true", help="only learn which test runs which line")
    parser.add_argument("--anew", action="store_true", help="learn it again for all test files")
    parser.add_argument("--cache", type=Path, default=ROOT / ".mutants", help="where that is kept (.mutants)")
    return parser.parse_args(words)


def chosen(asked: argparse.Namespace, seed: int) -> list[Mutant]:
    """Return the mutants that are asked for."""
    if asked.own or asked.check:
        mutants = drawing.hand_written(ROOT, asked.package)
    else:
        mutants = drawing.draw(ROOT, asked.package, asked.count, seed)
    for mutant in mutants:
        name = f"{mutant.path.removesuffix('.py').replace('/', '.')}:{mutant.scope}"
        mutant.by = equivalent.reason(name, mutant.old, mutant.new)
        mutant.outcome = "equivalent" if mutant.by else ""
    return [m for m in mutants if not asked.only or asked.only in f"{m.path}:{m.line} {m.scope}"]


def learn(suite: Suite, pool: Pool, anew: bool):
    """Map the test files that have changed since they were mapped, or never were."""
    todo = suite.missing(anew)
    for n, (file, answer) in enumerate(pool.each(todo, lambda copy, file: copy.map(file, suite)), 1):
        note = "" if answer["code"] in (0, 5) else f"  exit code {answer['code']} {answer['why']} {answer['failed']}"
        print(f"map {n}/{len(todo)} {file}: {answer['cpu']:.1f} CPU s, {answer['wall']:.0f} s{note}", flush=True)
        if answer["code"] not in (0, 1, 5):
            print(answer["tail"], file=sys.stderr)


def main(words: list[str] | None = None) -> int:
    asked = arguments(words)
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10 ** 6)
    try:
        mutants = chosen(asked, seed)
    except drawing.DoesNotApply as error:
        print(f"These faults do not apply any more:\n{error}", file=sys.stderr)
        return 2
    kind = "hand-written faults" if asked.own or asked.check else f"mutants, seed {seed}"
    print(f"{len(mutants)} {kind}", flush=True)
    if asked.list:
        print("\n".join(report.place(m) for m in mutants))
    if asked.list or asked.check:
        return 0
    suite = Suite(ROOT, asked.cache, find_test_files(ROOT, asked.tests))
    begin = time.monotonic()
    with Pool(ROOT, asked.jobs) as pool:
        learn(suite, pool, asked.anew)
        suite.load()
        if suite.broken:
            print("left out, for they fail without a mutant:", *suite.broken, sep="\n  ")
        if asked.map:
            return 0
        return judge(mutants, suite, pool, asked, seed, begin)


def judge(mutants: list[Mutant], suite: Suite, pool: Pool, asked: argparse.Namespace, seed: int, begin: float) -> int:
    """Judge all mutants and print the result."""
    choice = Choice(suite)
    # Shuffle, so that the mutants judged so far are always a fair sample.
    random.Random(seed).shuffle(mutants)

    def one(copy: Copy, mutant: Mutant) -> Mutant:
        return copy.judge(mutant, choice, asked.budget, asked.patience)
    todo = [m for m in mutants if not m.outcome]
    for n, (mutant, _) in enumerate(pool.each(todo, one), 1):
        print(f"{n}/{len(todo)} {mutant.outcome:9} {mutant.cpu:5.1f} CPU s {mutant.tests:4} tests  "
              f"{mutant.path}:{mutant.line}  {mutant.by.splitlines()[0] if mutant.by else ''}", flush=True)
    print("", report.listing(mutants), "", report.table(mutants), "", sep="\n")
    kind = "own" if asked.own else f"seed-{seed}"
    report.write(asked.cache / f"report-{kind}.json", mutants, {"seed": None if asked.own else seed,
                                                              "seconds": time.monotonic() - begin})
    low = report.failed(mutants)
    print(f"{kind}: {100 * report.rate(mutants):.1f} % noticed (a lower bound), "
          f"{time.monotonic() - begin:.0f} s; {asked.cache}/report-{kind}.json")
    if low:
        print("too few:", ", ".join(low))
    return 1 if low else 0


def end(*_):
    raise SystemExit(130)


if __name__ == "__main__":
    # End by an exception, so that copies and workers are cleared away.
    signal.signal(signal.SIGTERM, end)
    sys.exit(main())
