"""`python -m benchmarks NAME key=value ...`: read the command line and run one benchmark."""
from __future__ import annotations

import argparse
import sys

from benchmarks import command

DESCRIPTION = """Measure speed, as a ratio of two things that are timed in the same run. Start it in the folder of the
checkout, and under mpiexec for several ranks: mpiexec -n 3 python -m benchmarks scaling samples=200"""


def main(words: list[str] | None = None) -> int:
    """Run the benchmark that the words name; return the exit code: 0 done, 1 failed, 2 bad input."""
    given = read_words(words)
    return command.run_benchmark(given.name, given.settings, given.json, given.plot)


def read_words(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=DESCRIPTION)
    parser.add_argument("name", metavar="NAME", help=", ".join(command.NAMES))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="for example model=mlp clients=100")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    parser.add_argument("--plot", metavar="FILE", help="draw the figures: PNG, SVG or PDF")
    return parser.parse_intermixed_args(words)


if __name__ == "__main__":
    sys.exit(main())
