"""Kill random ranks of a small run at random moments, continue it on other numbers of ranks, and compare digests.

    python -m tests.kills [--times 20] [--seed 0] [--srun] [--folder DIR]

It prints a line for each kill and ends with code 1 if a digest differs. With --srun the ranks are a step of a Slurm job
of their own on one to three nodes (`salloc`)."""
from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests import forked, launch
from tests.runs import CONFIG

LIMIT = 300      # seconds after which a start that hangs is ended; no test depends on it
RANKS = (2, 3, 4)
# They take several seconds, so that most kills hit a run that is under way.
ROUNDS = 40


@dataclass
class Trial:
    """A run that is killed and then finished."""
    folder: Path
    rounds: int
    srun: bool = False
    python: str | Path = sys.executable

    def __post_init__(self):
        self.out, self.config = self.folder / "run", self.folder / "c.yaml"
        data = CONFIG["data"] | {"cache": str(self.folder / "cache")}
        self.config.write_text(json.dumps(CONFIG | {"data": data, "rounds": self.rounds, "checkpoint": {"every": 2}}))

    def start(self, ranks: int) -> subprocess.Popen:
        """Start the run, or continue it, on some ranks."""
        words = ["-m", "fedmpi", "run", self.config, "--out", self.out, "--resume", "auto"]
        command = launch.command(ranks, *words, python=self.python)
        if self.srun:
            command = ["salloc", "--quiet", f"--nodes={min(ranks, 3)}", f"--ntasks={ranks}", "srun", "--mpi=pmi2",
                       "--kill-on-bad-exit=1", sys.executable, *map(str, words)]
        mark = os.urandom(8).hex()
        with open(self.folder / "said.txt", "w") as said:
            job = subprocess.Popen(command, cwd=self.folder, env=launch.ENVIRONMENT | {launch.MARK: mark}, stdout=said,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        job.mark = mark
        return job

    def said(self) -> str:
        """Return what the latest start has printed so far."""
        return (self.folder / "said.txt").read_text()

    def saved(self) -> int:
        """Return the round of the newest checkpoint; 0 if there is none."""
        rounds = [int(p.stem.removeprefix("round-")) for p in (self.out / "checkpoints").glob("round-*.h5")]
        return max(rounds, default=0)

    def killed(self, draw: random.Random) -> dict | None:
        """Start, wait for a random moment, kill a random rank; return what happened, or None if the run had ended."""
        ranks, before = draw.choice(RANKS), self.saved()
        job, moment = self.start(ranks), draw.uniform(0, 3)
        # Wait until the first round of this start is printed.
        while job.poll() is None and "\nround " not in self.said():
            time.sleep(.02)
        time.sleep(moment)
        rank = draw.randrange(ranks)
        pids = [pid for pid, e in launch.processes(job).items() if launch.rank_of(e) == rank]
        if not pids:
            self.wait(job)
            return None
        begin = time.monotonic()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code = self.wait(job)
        return {"ranks": ranks, "rank": rank, "moment": moment, "before": before, "saved": self.saved(), "code": code,
                "ended": time.monotonic() - begin}

    def wait(self, job) -> int:
        """Wait for the end of a job; return its exit code."""
        try:
            return job.wait(LIMIT)
        except subprocess.TimeoutExpired:
            launch.end(job)
            raise AssertionError(f"the job did not end:\n{self.said()}") from None

    def finish(self, ranks: int) -> str:
        """Run to the end on some ranks; return the digest."""
        code = self.wait(self.start(ranks))
        assert code == 0, self.said()
        return self.digest()

    def uninterrupted(self) -> str:
        """Run to the end on one rank, which is a fork of this process; return the digest."""
        done = forked.command(1, "run", self.config, "--out", self.out, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return self.digest()

    def digest(self) -> str:
        """Return the digest in result.json."""
        return json.loads((self.out / "result.json").read_text())["digest"]


def survives(times: int, seed: int, srun: bool, folder: Path, report=print, python=sys.executable) -> bool:
    """Kill `times` runs, each of which then continues; say whether all end with the digest of an uninterrupted run."""
    draw, well = random.Random(seed), True
    straight = Trial(Path(tempfile.mkdtemp(dir=folder)), ROUNDS).uninterrupted()
    done = 0
    while done < times:
        trial = Trial(Path(tempfile.mkdtemp(dir=folder)), ROUNDS, srun, python)
        while done < times and (what := trial.killed(draw)):
            done += 1
            report(f"kill {done:2}: rank {what['rank']} of {what['ranks']}, {what['moment']:.2f} s into its rounds; "
                   f"ended {what['ended']:.1f} s later with code {what['code']}; rounds saved {what['before']} -> "
                   f"{what['saved']}")
            well &= what["code"] not in (0, 75)
        ranks = draw.choice(RANKS)
        digest = trial.finish(ranks)
        report(f"finished on {ranks} ranks: digest {digest[:16]}, uninterrupted {straight[:16]}: "
               f"{'equal' if digest == straight else 'DIFFERENT'}")
        well &= digest == straight
    return well


def main() -> int:
    """Read the command line and kill; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--srun", action="store_true")
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        return not survives(given.times, given.seed, given.srun, given.folder or Path(own))


if __name__ == "__main__":
    sys.exit(main())
