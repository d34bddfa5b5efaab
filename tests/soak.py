"""Watch a long run: `python -m tests.soak [ROUNDS] [RANKS]` prints the memory and open files of each rank by round.

Every round is evaluated and saved. Memory is the resident part in MiB, from /proc. The exit code is 1 if a rank grows
by more than MAX_GROWTH_MIB, or opens more than MAX_NEW_FILES files, between a tenth of the rounds and the end."""
from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

from tests import launch
from tests.runs import CONFIG

MAX_GROWTH_MIB = 16
# a checkpoint or a history may be open at the moment
MAX_NEW_FILES = 3


def sample(job) -> dict[int, tuple[float, int]]:
    """Return the resident MiB and the number of open files of each rank."""
    found = {}
    for pid, environment in launch.processes(job).items():
        rank = launch.rank_of(environment)
        if rank is not None:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
            found[rank] = mib, len(os.listdir(f"/proc/{pid}/fd"))
    return found


def watch(rounds: int, ranks: int, folder: Path) -> dict[int, dict]:
    """Run; return what each rank held after every tenth of the rounds."""
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
    """Watch a run and say which ranks grew; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        seen = watch(rounds, ranks, Path(folder))
    first, last = seen[min(seen)], seen[max(seen)]
    grown = [rank for rank, (mib, files) in last.items()
             if mib > first[rank][0] + MAX_GROWTH_MIB or files > first[rank][1] + MAX_NEW_FILES]
    print(f"ranks that grew: {grown}" if grown else "no rank grew")
    return bool(grown)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
