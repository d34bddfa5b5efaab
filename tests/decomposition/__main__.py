"""Run the decomposition suite, print all differences, and end with 1 if there is a forbidden one.

    python -m tests.decomposition [--quick] [--methods a,b] [--mpiexec] [--out FILE.json]

Every method is run so that each pair of values of two factors (cases.py lists them) occurs, and every run is compared
with one on a single rank that computes the same. Ranks are forked from this process, or real MPI jobs."""
from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

# Forked ranks that need two threads make their own.
os.environ["OMP_NUM_THREADS"] = "1"
# Threads must not spin, because there are more ranks than cores.
os.environ["OMP_WAIT_POLICY"] = "passive"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.decomposition", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few methods, one of each kind, and fewer values")
    parser.add_argument("--methods", help="only these, separated by commas")
    parser.add_argument("--mpiexec", action="store_true", help="real MPI jobs in place of forked ranks")
    parser.add_argument("--out", type=Path, help="write every run and its hashes to this JSON file")
    asked = parser.parse_args(words)
    from tests.decomposition import cases, quick, ranks, suite
    begin, names = time.perf_counter(), cases.methods(asked.methods)
    with tempfile.TemporaryDirectory(prefix="fedmpi-decomposition-") as folder:
        config = cases.write_inputs(Path(folder))
        suite_of = suite.Suite(Path(folder), config, (ranks.Mpiexec if asked.mpiexec else ranks.Forked)(config))
        if asked.quick:
            planned = {name: rows for name, rows in quick.designs().items() if not asked.methods or name in names}
        else:
            planned = {name: suite.design(name, config, turn=turn) for turn, name in enumerate(names)}
        found = []
        for name, rows in planned.items():
            new = suite_of.compare(name, rows)
            found += new
            print(f"{name}: {len(rows)} runs, {len([*filter(suite.broken, new)])} mismatches, "
                  f"{time.perf_counter() - begin:.0f} s", *map(suite.line, filter(suite.broken, new)), sep="\n",
                  flush=True)
    bad = [*filter(suite.broken, found)]
    print("", suite.tables(found), "", sep="\n")
    spent = sum(os.times()[:4])
    refused = sum(one.differs is None and not one.digest for one in found)
    print(f"{len(found)} runs and their references, {suite_of.started} starts, {len(bad)} mismatches, "
          f"{refused} refused alike; {spent:.0f} CPU s")
    if asked.out:
        asked.out.write_text(json.dumps({"runs": [asdict(one) for one in found], "cpu_seconds": spent}, indent=1))
    # Unfreeze what forking froze; otherwise libraries complain of leaks.
    gc.unfreeze()
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
