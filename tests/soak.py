"""A long run, watched: `python -m tests.soak [ROUNDS] [RANKS]` prints each rank's memory and open files as rounds pass.

Every round is judged and saved. Memory is the resident part in MiB, from /proc. Exits with 1 where a rank grows by more
than GROWTH between a tenth of the rounds and the end, or has more than FILES more open."""
from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

from tests import launch
from tests.runs import CONFIG

GROWTH = 16      # MiB
FILES = 3        # that may be open just now: a checkpoint, a history


def sample(job) -> dict[int, tuple[float, int]]:
    """Return resident MiB and open files of each rank."""
    found = {}
    for pid, environment in launch.processes(job).items():
        rank = launch.rank_of(environment)
        if rank is not None:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
            found[rank] = mib, len(os.listdir(f"/proc/{pid}/fd"))
    return found


def watch(rounds: int, ranks: int, folder: Path) -> dict[int, dict]:
    """Run; return what each rank held after some of the rounds."""
    (folder / "c.yaml").write_text(json.dumps(CONFIG | {"rounds": rounds}))
    job = launch.start(ranks, "-m", "fedmpi", "run", folder / "c.yaml", "--out", folder / "run", cwd=folder)
    seen = {}
    for line in job.stdout:
        done = re.match(r"round +(\d+)/", line)
        if done and int(done[1]) % max(1, rounds // 10) == 0 and int(done[1]) < rounds:
            held = seen[int(done[1])] = sample(job)
            print(f"round {done[1]:>5}  " + "   ".join(f"rank {rank}: {mib:.1f} MiB, {files} files"
                                                       for rank, (mib, files) in sorted(held.items())), flush=True)
    end = launch.finish(job)
    if end.returncode:
        raise SystemExit(end.stderr)
    return seen


def main(rounds: int = 500, ranks: int = 2) -> int:
    with tempfile.TemporaryDirectory() as folder:
        seen = watch(rounds, ranks, Path(folder))
    first, last = seen[min(seen)], seen[max(seen)]
    grown = [rank for rank, (mib, files) in last.items()
             if mib > first[rank][0] + GROWTH or files > first[rank][1] + FILES]
    print(f"ranks that grew: {grown}" if grown else "no rank grew")
    return bool(grown)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
