"""Kill random ranks of small runs at random moments, continue them on other numbers of ranks, and compare digests.

    python -m tests.kills [--times 40] [--seed 0] [--cold] [--srun] [--folder DIR]

The runs are of eight methods. A rank is killed (SIGKILL), is asked to stop (SIGTERM), or is killed while a checkpoint
is being written; every other start has `checkpoint.asynchronous`. It prints a line for each kill and ends with code 1
if a digest differs. Processes are forks of one that has loaded PyTorch (warm.py), under the real launcher and the real
MPI library; with --cold each of them is a new Python. With --srun the ranks are a step of a Slurm job of their own on
one to three nodes (`salloc`)."""
from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests import forked, launch, warm
from tests.runs import CONFIG
from tests.sockets import Package, SocketMPI

# seconds after which a start that hangs is ended; no test depends on it
LIMIT = 300
RANKS = (2, 3)
# A start is killed after at most a quarter of these, so that most kills hit a run that is under way.
ROUNDS = 40
METHODS = ("fedmhc", "fedavg", "ditto", "ifca", "pfedme", "fedala", "fesem", "fedamp")
KILLED, ASKED, WRITING = "killed", "asked to stop", "killed in a write"
HOWS = (KILLED, KILLED, WRITING, ASKED)


@dataclass
class Trial:
    """A run that is killed and then finished."""
    folder: Path
    rounds: int
    srun: bool = False
    python: str | Path = sys.executable
    method: str = METHODS[0]
    starts: int = field(default=0, init=False)

    def __post_init__(self):
        self.out, self.config = self.folder / "run", self.folder / "c.yaml"
        data = CONFIG["data"] | {"cache": str(self.folder / "cache")}
        self.config.write_text(json.dumps(CONFIG | {"data": data, "method": self.method, "rounds": self.rounds,
                                                    "checkpoint": {"every": 2}}))

    def start(self, ranks: int) -> subprocess.Popen:
        """Start the run, or continue it, on some ranks; every other start trains on while a checkpoint is written."""
        self.starts += 1
        asynchronous = f"checkpoint.asynchronous={str(bool(self.starts % 2)).lower()}"
        words = ["-m", "fedmpi", "run", self.config, asynchronous, "--out", self.out, "--resume", "auto"]
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
        """Start, wait for some rounds, hit a random rank; return what happened, or None if the run had ended."""
        ranks, rounds, moment = draw.choice(RANKS), draw.randint(1, self.rounds // 4), draw.uniform(0, .2)
        before, how, part, job = self.saved(), draw.choice(HOWS), None, self.start(ranks)
        # Wait until this start has printed so many rounds.
        while job.poll() is None and self.said().count("\nround ") < rounds:
            time.sleep(.02)
        rank = 0 if how == WRITING else draw.randrange(ranks)
        pids = [pid for pid, e in launch.processes(job).items() if launch.rank_of(e) == rank]
        time.sleep(moment)
        while how == WRITING and not part and job.poll() is None:
            part = next((self.out / "checkpoints").glob("*.part"), None)
            time.sleep(.0005)
        if not pids or job.poll() is not None:
            self.wait(job)
            return None
        begin = time.monotonic()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if how == ASKED else signal.SIGKILL)
        code = self.wait(job)
        return {"how": how, "ranks": ranks, "rank": rank, "rounds": rounds, "before": before, "saved": self.saved(),
                "code": code, "ended": time.monotonic() - begin, "asynchronous": bool(self.starts % 2),
                "part": bool(part and part.exists())}

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


def survives(times: int, seed: int, srun: bool, folder: Path, report=print, python=sys.executable,
             rounds: int = ROUNDS) -> bool:
    """Kill `times` runs, each of which then continues; say whether all end with the digest of an uninterrupted run."""
    draw, well, straight = random.Random(seed), True, {}
    done = 0
    for method in itertools.cycle(METHODS):
        if method not in straight:
            straight[method] = Trial(Path(tempfile.mkdtemp(dir=folder)), rounds, method=method).uninterrupted()
        trial = Trial(Path(tempfile.mkdtemp(dir=folder)), rounds, srun, python, method)
        until = min(times, done + math.ceil(times / len(METHODS)))
        while done < until and (what := trial.killed(draw)):
            done += 1
            ways = ", asynchronous" * what["asynchronous"] + ", a part was left" * what["part"]
            report(f"kill {done:2}: {method}, rank {what['rank']} of {what['ranks']} {what['how']}, "
                   f"{what['rounds']} rounds after its start{ways}; ended {what['ended']:.1f} s later with code "
                   f"{what['code']}; rounds saved {what['before']} -> {what['saved']}")
            # A run that is asked to stop may have been in its last round.
            well &= (what["code"] in (0, 75)) == (what["how"] == ASKED)
        ranks = draw.choice(RANKS)
        digest = trial.finish(ranks)
        report(f"{method} finished on {ranks} ranks: digest {digest[:16]}, uninterrupted {straight[method][:16]}: "
               f"{'equal' if digest == straight[method] else 'DIFFERENT'}")
        well &= digest == straight[method]
        if done >= times:
            return well


def main() -> int:
    """Read the command line and kill; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--srun", action="store_true")
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    cold = given.cold or given.srun
    if not cold:
        # As in conftest.py: a warm process has this in place of the real library until it starts ranks.
        sys.modules["mpi4py"] = Package(SocketMPI(0, 1, {}))
    with tempfile.TemporaryDirectory() as own, nullcontext(sys.executable) if cold else warm.python() as python:
        return not survives(given.times, given.seed, given.srun, given.folder or Path(own), python=python)


if __name__ == "__main__":
    sys.exit(main())
