"""Runs of the real command for the end-to-end tests: configurations, jobs, and what they leave.

The fixture `bench` of conftest.py is a `Bench`. `lead` runs in this process, `run` on forked ranks, and `mpirun` under
a real launcher."""
from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests import forked, launch

CONFIG = {"rounds": 3, "seed": 2, "method": {"name": "fedmhc", "M": 3}, "model": {"name": "mlp", "hidden": 16},
          "data": {"clients": 9, "fraction": .4, "partition": {"name": "dirichlet", "beta": .2}},
          "train": {"lr": .05, "participation": .7, "steps": 5}, "checkpoint": {"every": 1},
          # A rank that a launcher starts need not load torch.func then, which takes 2.5 CPU seconds.
          "engine": "loop"}


@dataclass
class Bench:
    """A folder with a configuration, in which runs are started."""
    folder: Path
    cache: Path
    jobs: list = field(default_factory=list)

    def __post_init__(self):
        self.config = self.write("c.yaml", CONFIG | {"data": CONFIG["data"] | {"cache": str(self.cache)}})

    def write(self, name: str, values: dict) -> str:
        """Write a configuration; return its path."""
        (self.folder / name).write_text(json.dumps(values))
        return str(self.folder / name)

    def out(self, name: str) -> Path:
        """Return the folder of a run."""
        return self.folder / name

    def run(self, ranks: int, name: str, *words):
        """Run `fedmpi run` to its end on some ranks, which are forks of this process (tests/forked.py)."""
        return forked.command(ranks, "run", self.config, *words, "--out", self.out(name), cwd=self.folder)

    def start(self, ranks: int, name: str, *words, python=sys.executable):
        """Start `fedmpi run` under a real launcher. `words` are overrides and options; `python` may be a warm one."""
        words = ("-m", "fedmpi", "run", self.config, *words, "--out", self.out(name))
        self.jobs.append(launch.start(ranks, *words, cwd=self.folder, python=python))
        return self.jobs[-1]

    def mpirun(self, ranks: int, name: str, *words, python=sys.executable):
        """Start `fedmpi run` under a real launcher, and wait for its end."""
        return launch.finish(self.start(ranks, name, *words, python=python))

    def lead(self, name: str, *overrides, resume=None) -> int:
        """Do what `fedmpi run` does in this process, on one rank; return the exit code."""
        return run_alone(self.config, overrides, self.out(name), resume)

    def straight(self, rounds: int) -> str:
        """Return the digest of an uninterrupted run of that number of rounds."""
        name = f"straight-{rounds}"
        if not self.out(name).exists():
            assert self.lead(name, f"rounds={rounds}") == 0
        return self.result(name)["digest"]

    def result(self, name: str) -> dict:
        """Return what result.json of a run holds."""
        return json.loads((self.out(name) / "result.json").read_text())

    def metrics(self, name: str) -> list[dict]:
        """Return the lines of metrics.jsonl of a run."""
        return [json.loads(line) for line in (self.out(name) / "metrics.jsonl").read_text().splitlines()]

    def saved(self, name: str) -> list[Path]:
        """Return the checkpoints of a run, the oldest first."""
        return sorted((self.out(name) / "checkpoints").glob("round-*.h5"))


def run_alone(config, overrides, out, resume=None, stop=lambda: False, limit=None, world=None, **more) -> int:
    """Do what `fedmpi run` does, in this process on one rank; return the exit code."""
    from fedmpi.comm.transport import Solo
    from fedmpi.context import RankContext
    from fedmpi.run_request import RunRequest
    from fedmpi.session import lead_command
    request = RunRequest(str(config), list(overrides), None if out is None else str(out), resume, limit, **more)
    return lead_command(world or Solo(), request, RankContext(stop))


def wait_for(job, text: str):
    """Read what a job prints up to a line that begins with `text`."""
    for line in job.stdout:
        if line.startswith(text):
            return
    raise AssertionError(f"the job ended before it said {text!r}: {job.stderr.read()}")


def kill(job, rank: int):
    """Kill one rank of a job, as if its node failed."""
    (pid,) = (pid for pid, e in launch.processes(job).items() if launch.rank_of(e) == rank)
    os.kill(pid, signal.SIGKILL)


def gone(job) -> bool:
    """Wait until no process of a job is left; say whether that is so within `launch.LIMIT`."""
    for _ in range(10 * launch.LIMIT):
        if not launch.processes(job):
            return True
        time.sleep(.1)
    return False
