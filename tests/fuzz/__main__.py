"""The command; `python -m tests.fuzz --help` lists its options, and docs/testing.md explains them."""
from __future__ import annotations

import argparse
import json
import os
import random
import select
import shlex
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from tests import forked, launch
from tests.fuzz import oracle
from tests.fuzz.case import KINDS, Case, build, is_real, kind_of
from tests.fuzz.perform import Done, environment, perform
from tests.fuzz.reference import Reference, make_reference
from tests.sockets import Package, SocketMPI

VERDICTS = ("ok", "refused", "fell short")
PROGRESS_S = 60


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz",
                                     description="Throw odd input at fedmpi: configurations, "
                                     "command lines, data, damaged files and faulty modules. Exit code 1: in some case "
                                     "the program fell short.")
    parser.add_argument("--minutes", type=float, default=5, help="begin no case after this time (%(default)s)")
    parser.add_argument("--cases", type=int, help="perform so many cases, however long it takes")
    parser.add_argument("--seed", type=int, help="repeat a draw; without it, one that nobody has seen")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS, help="only cases of these kinds")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time (%(default)s)")
    parser.add_argument("--case", type=int, nargs="+",
                        help="perform only the cases of these numbers, and print what they say")
    parser.add_argument("--all", action="store_true", help="print a line about every case")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case (%(default)s)")
    parser.add_argument("--out", type=Path, default=launch.ROOT / ".fuzz", help="folder for reproductions (.fuzz)")
    return parser.parse_args(words)


def attempt(seed: int, number: int, reference: Reference, place: Path) -> tuple[Case, list[Done], str, str]:
    """Perform a case; return it, what its commands did, and the verdict with its reason."""
    folder = place / "a" / "b"
    case = build(seed, number, folder, reference)
    done: list[Done] = []
    for i, words in enumerate(case.commands):
        if i and case.between:
            case.between(folder)
        before = oracle.list_files(folder)
        done.append(perform(words, folder, case.ranks, case.environment, is_real(number)))
        if done[-1].code or done[-1].end:
            break
    # What goes before the last command must not fail.
    if len(done) < len(case.commands):
        return case, done, "fell short", f"its first command ended with code {done[-1].code}: {done[-1].error[-200:]}"
    return case, done, *oracle.judge(case, done[-1], folder, before, reference)


def work(seed: int, numbers: Iterable[int], until: float, reference: Reference, scratch: Path, pipe: int) -> None:
    """Perform cases, and write a line about each to a pipe."""
    for number in numbers:
        if time.monotonic() > until:
            return
        place = scratch / str(number)
        place.mkdir()
        try:
            case, done, verdict, why = attempt(seed, number, reference, place)
            said = {"what": case.what, "cpu": sum(d.cpu for d in done), "real": is_real(number)}
        # A case that cannot be made is a fault of these tests, and must be seen.
        except Exception as error:
            verdict, where = "fell short", traceback.format_exc()[-300:]
            why = f"the test itself failed: {type(error).__name__}: {error}: {where}"
            said = {"what": "", "cpu": 0., "real": False}
        line = json.dumps({"number": number, "verdict": verdict, "why": why} | said)
        os.write(pipe, line.encode(errors="replace") + b"\n")
        shutil.rmtree(place, ignore_errors=True)


def each(asked: argparse.Namespace, seed: int, reference: Reference, scratch: Path) -> Iterator[dict]:
    """Let workers, which are forks of this process, perform the cases; yield what they say."""
    count = sys.maxsize if asked.cases is None else asked.cases
    until = time.monotonic() + (60 * asked.minutes if asked.cases is None else 1e9)
    pids, pipes = [], {}
    for job in range(asked.jobs):
        ours, its = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(ours)
            numbers = (n for n in range(asked.first + job, min(asked.first + count, sys.maxsize), asked.jobs)
                       if kind_of(n) in asked.kind)
            forked.leave(lambda numbers=numbers, its=its: work(seed, numbers, until, reference, scratch, its))
        os.close(its)
        pids.append(pid)
        pipes[ours] = b""
    while pipes:
        for pipe in select.select(list(pipes), [], [])[0]:
            data = os.read(pipe, 1 << 16)
            *lines, pipes[pipe] = (pipes[pipe] + data).split(b"\n")
            yield from map(json.loads, lines)
            if not data:
                del pipes[pipe]
                os.close(pipe)
    for pid in pids:
        os.waitpid(pid, 0)


def keep(seed: int, number: int, reference: Reference, folder: Path) -> Path:
    """Write the files of a case, and a script with its commands; return their folder."""
    place = folder / f"{seed}-{number}"
    shutil.rmtree(place, ignore_errors=True)
    case = build(seed, number, place / "files", reference)
    lines = ["#!/bin/sh", f"# {case.what!a}", f"cd {shlex.quote(str((place / 'files').resolve()))}"]
    for name, value in environment(Path("."), case.environment).items():
        if name in ("TMPDIR", "HOME", "PYTHONIOENCODING", "PYTHONPATH"):
            lines.append(f"export {name}={shlex.quote(str(Path(value)) if name == 'PYTHONPATH' else value)}")
    for words in case.commands:
        command = launch.command(case.ranks, "-m", "fedmpi", *words) if case.ranks > 1 else [
            sys.executable, "-m", "fedmpi", *words]
        lines.append(shlex.join(command))
    (place / "again.sh").write_text("\n".join(lines) + "\n", errors="surrogateescape")
    return place


def main(words: list[str] | None = None) -> int:
    asked = arguments(words)
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10 ** 6)
    sys.modules.setdefault("mpi4py", Package(SocketMPI(0, 1, {})))
    forked.load()
    load_more()
    with tempfile.TemporaryDirectory() as scratch:
        reference = make_reference(Path(scratch) / "reference")
        if asked.case is not None:
            return max([show(seed, number, reference, asked, Path(scratch)) for number in asked.case])
        print(f"seed {seed}", flush=True)
        return report(asked, seed, reference, Path(scratch))


def load_more() -> None:
    """Load what single commands need, so that the forks need not."""
    with suppress(ImportError):
        import torchvision  # noqa: F401

    import fedmpi.commands.plan
    import fedmpi.commands.submit
    import fedmpi.report.results
    import fedmpi.report.write
    import fedmpi.sweeps.job  # noqa: F401


def show(seed: int, number: int, reference: Reference, asked: argparse.Namespace, scratch: Path) -> int:
    """Perform one case and print all about it."""
    case, done, verdict, why = attempt(seed, number, reference, scratch / str(number))
    for words, end in zip(case.commands, done, strict=False):
        started = "new" if is_real(number) else "forked"
        print(f"$ fedmpi {shlex.join(words)!a}   ({case.ranks} ranks, {started})\n"
              f"{end.out!a:.3000}\n{end.error!a:.3000}\n".replace("\\n", "\n")
              + f"code {end.code} {end.end} {end.cpu:.2f} CPU s")
    print(f"seed {seed} case {number} {kind_of(number)}: {case.what!a}\n{verdict}: {why!a}\nkept in "
          f"{keep(seed, number, reference, asked.out)}")
    return verdict == "fell short"


def report(asked: argparse.Namespace, seed: int, reference: Reference, scratch: Path) -> int:
    """Perform all cases; print a line for each that fell short, and a table at the end."""
    counts, spent, real = Counter(), Counter(), Counter()
    begin = shown = time.monotonic()
    for said in each(asked, seed, reference, scratch):
        number, kind = said["number"], kind_of(said["number"])
        counts[kind, said["verdict"]] += 1
        real[kind] += said["real"]
        spent[kind] += said["cpu"]
        if said["verdict"] == "fell short":
            place = ""
            with suppress(Exception):
                place = f" ({keep(seed, number, reference, asked.out)})"
            print(f"seed {seed} case {number} {kind} [{said['what']!a:.120}]: {said['why']!a}{place}", flush=True)
        elif asked.all:
            print(f"case {number} {kind} [{said['what']!a:.120}]: {said['verdict']} {said['why']!a:.200}", flush=True)
        if time.monotonic() > shown + PROGRESS_S:
            shown = time.monotonic()
            print(f"{sum(counts.values())} cases in {shown - begin:.0f} s", flush=True)
    print(f"\n{'kind':10}{'cases':>8}{'real':>6}" + "".join(f"{v:>12}" for v in VERDICTS) + f"{'CPU s':>8}")
    for kind in (*KINDS, "all"):
        kinds = KINDS if kind == "all" else [kind]
        row = [sum(counts[k, v] for k in kinds) for v in VERDICTS]
        print(f"{kind:10}{sum(row):8}{sum(real[k] for k in kinds):6}" + "".join(f"{n:12}" for n in row)
              + f"{sum(spent[k] for k in kinds):8.0f}")
    short = sum(counts[k, "fell short"] for k in KINDS)
    print(f"seed {seed}: {short} of {sum(counts.values())} cases fell short, {time.monotonic() - begin:.0f} s")
    return int(short > 0)


if __name__ == "__main__":
    sys.exit(main())
