"""The first day with a GPU, in one command: are results correct, how fast is it, and did a change help?

    python benchmarks/gpu_day.py correctness --out DIR [--budget 560] [--device cpu] [--small] [--only STEP,STEP]
    python benchmarks/gpu_day.py figures --out DIR
    python benchmarks/gpu_day.py after --out DIR
    python benchmarks/gpu_day.py table DIR/gpu_day.json ... [--markdown]
    python benchmarks/gpu_day.py steps

Each part takes at most ten minutes. DIR/gpu_day.json is complete after every step, so a part that is killed keeps its
results; DIR/gpu_day.log holds what the steps printed. See docs/gpu.md."""
from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGET_S = 560.
# A trial (`--small`) may take so many times as long as the real thing.
TRIAL_TIMES = 10


def main(words: list[str] | None = None) -> int:
    """Return the exit code: 0 all steps ended well, 1 some did not, 2 bad input."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from benchmarks.gpu import plan
    from fedmpi.errors import BAD_INPUT, FedmpiError
    from fedmpi.paths import refuse_wrong_paths
    given = parse(words, sorted(plan.PARTS))
    try:
        with refuse_wrong_paths():
            return given.do(given)
    except FedmpiError as error:
        print(f"gpu_day: {error}", file=sys.stderr)
        return BAD_INPUT


def parse(words: list[str] | None, parts: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    doing = parser.add_subparsers(required=True)
    for part in parts:
        one = doing.add_parser(part)
        one.add_argument("--out", type=Path, required=True, help="folder for gpu_day.json and gpu_day.log")
        one.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all steps together")
        one.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
        one.add_argument("--small", action="store_true", help="run the cheapest cases, only to see that the steps work")
        one.add_argument("--only", default="", help="names of steps, separated by commas; `steps` lists them")
        one.set_defaults(do=take, part=part)
    one = doing.add_parser("table")
    one.add_argument("files", type=Path, nargs="+", help="gpu_day.json files or their folders; later ones replace "
                     "the same steps of earlier ones")
    one.add_argument("--markdown", action="store_true", help="print Markdown, as in a report's README.md")
    one.set_defaults(do=show)
    doing.add_parser("steps").set_defaults(do=name_steps)
    return parser.parse_args(words)


def take(given: argparse.Namespace) -> int:
    """Take the steps of a part and print the table."""
    begin = time.monotonic()
    from benchmarks.command import find_commit
    from benchmarks.gpu import plan
    from benchmarks.gpu.day import Day
    from fedmpi.report.gpu_tables import format_tables
    end_by_signal()
    steps = plan.chosen(given.part, given.only)
    if given.small:
        # A trial, maybe on a busy machine, shows that the steps work and not how long they take.
        steps = [dataclasses.replace(step, limit_s=TRIAL_TIMES * step.limit_s, silent_s=TRIAL_TIMES * step.silent_s)
                 for step in steps]
    plan.preload(given.device)
    head = {"when": time.strftime("%Y-%m-%d %H:%M:%S %z"), "commit": find_commit(), "device": given.device,
            "small": given.small}
    book = Day(given.part, steps, given.out, given.budget - (time.monotonic() - begin), given.device, given.small,
               head).go()
    print(format_tables(book, given.part))
    taken = [row for row in book["steps"] if row["part"] == given.part]
    return int(not all(row["ok"] for row in taken))


def end_by_signal() -> None:
    """Let SIGTERM raise SystemExit, so that the step under way is ended too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def show(given: argparse.Namespace) -> int:
    from fedmpi.report.gpu_tables import day_to_markdown, format_tables, read_days
    book = read_days(given.files)
    print(day_to_markdown(book) if given.markdown else format_tables(book))
    return 0


def name_steps(_given: argparse.Namespace) -> int:
    from benchmarks.gpu import plan
    for part, steps in plan.PARTS.items():
        for step in steps:
            print(f"{part:12} {step.name:22} {step.limit_s:4.0f} s at most  {plan.summary(step)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
