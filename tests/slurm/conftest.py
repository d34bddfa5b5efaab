"""Tests on a real Slurm. They submit jobs, so they run only if FEDMPI_TEST_SLURM=1 allows it."""
from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.launch import ENVIRONMENT, ROOT
from tests.runs import CONFIG

# Seconds until a job that hangs is cancelled: a safety net, not a measurement.
LIMIT = 150
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"}

WAITING = '''
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from fedmpi.methods.fedrep import FedRep


@dataclass(frozen=True)
class Waiting(FedRep):
    """In the third round of the first start one client waits until its process is asked to stop, or killed."""

    def client(self, shared, mine, data):
        mark = Path("reached")
        if data.client == 0 and data.local.round == 2 and not mark.exists():
            mark.touch()
            stop = signal.getsignal(signal.SIGTERM).__self__
            while not stop.asked:
                time.sleep(.02)
        return super().client(shared, mine, data)
'''


def unavailable() -> str:
    """Return why no job can be submitted here, "" if one can."""
    if os.environ.get("FEDMPI_TEST_SLURM") != "1":
        return os.environ.get("FEDMPI_NO_SLURM") or "FEDMPI_TEST_SLURM=1 lets these tests submit jobs to Slurm"
    if not shutil.which("sbatch"):
        return "there is no sbatch here"
    answer = subprocess.run(["scontrol", "ping"], capture_output=True, text=True)
    return "" if " UP" in answer.stdout else f"Slurm does not answer: {answer.stdout}{answer.stderr}".strip()


@pytest.fixture(scope="session", autouse=True)
def available():
    why = unavailable()
    if why:
        pytest.skip(why)


class Desk:
    """Submits jobs from a folder, watches and disturbs them."""

    def __init__(self, folder: Path, cache: Path):
        self.folder, self.jobs = folder, []
        # FedRep has a state of the server and one of each client, and does not load scikit-learn, which takes 3 CPU
        # seconds at each start.
        config = CONFIG | {"data": CONFIG["data"] | {"cache": str(cache)}, "rounds": 5, "method": {"name": "fedrep"}}
        (folder / "configs").mkdir()
        (folder / "configs" / "quickstart.yaml").write_text(json.dumps(config))
        (folder / "waiting.py").write_text(WAITING)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = ENVIRONMENT | {"PYTHONPATH": f"{ROOT}:{folder}", "PATH": path}

    def do(self, *words) -> subprocess.CompletedProcess:
        return subprocess.run([*map(str, words)], cwd=self.folder, env=self.environment, text=True, timeout=LIMIT,
                              stdin=subprocess.DEVNULL, capture_output=True)

    def sbatch(self, *words) -> str:
        done = self.do("sbatch", "--parsable", *words)
        assert done.returncode == 0, done.stderr
        self.jobs.append(done.stdout.strip())
        return self.jobs[-1]

    def submit(self, *words) -> str:
        """Run `fedmpi submit`; return the job's id."""
        done = self.do(sys.executable, "-m", "fedmpi", "submit", "configs/quickstart.yaml", "--time", "10", *words)
        assert done.returncode == 0, done.stderr
        self.jobs.append(done.stdout.strip())
        return self.jobs[-1]

    def fact(self, job: str, name: str) -> list[str]:
        """Return a field of `scontrol show job`, for each task of an array."""
        return re.findall(rf"\b{name}=(\S+)", self.do("scontrol", "show", "job", job).stdout)

    def over(self, job: str) -> str:
        """Wait for a job, restarts included; return what it printed."""
        self.until(lambda: all(state in OVER for state in self.fact(job, "JobState")), f"job {job} to end")
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"*-{job}*.out")))

    def until(self, happened, what: str):
        end = time.monotonic() + LIMIT
        while not happened():
            if time.monotonic() > end:
                said = "".join(path.read_text() for path in self.folder.glob("*.out"))
                raise AssertionError(f"waited in vain for {what}\n{self.do('squeue').stdout}\n{said}")
            time.sleep(.2)

    def waits(self):
        """Wait until a client of the job waits in its third round."""
        self.until((self.folder / "reached").exists, "the third round")

    def kill(self, job: str, rank: int, how=signal.SIGKILL):
        """Kill or stop a rank of a job; all virtual nodes are on this machine."""
        marks = {f"SLURM_JOB_ID={job}", f"SLURM_PROCID={rank}", "SLURM_STEP_ID=0"}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if marks <= {*(path / "environ").read_bytes().decode(errors="replace").split("\0")}:
                    os.kill(int(path.name), how)
                    return
        pytest.skip("the ranks are on other machines")

    @contextmanager
    def down(self, job: str):
        """Take down the last node of a job for a while, if it is a virtual one, on which nobody else works."""
        node = self.do("scontrol", "show", "hostnames", *self.fact(job, "NodeList")).stdout.split()[-1]
        if "NodeAddr=127.0.0.1" not in self.do("scontrol", "show", "node", node).stdout:
            pytest.skip("the nodes are real ones")
        self.do("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        try:
            yield node
        finally:
            self.do("scontrol", "update", f"nodename={node}", "state=resume")

    def digest(self, job: str) -> str:
        return json.loads((self.folder / "runs" / f"quickstart-{job}" / "result.json").read_text())["digest"]

    def cancel(self):
        for job in self.jobs:
            self.do("scancel", "--full", job)


@pytest.fixture
def desk(tmp_path, cache):
    desk = Desk(tmp_path, cache)
    yield desk
    desk.cancel()


@pytest.fixture(scope="session")
def straight(tmp_path_factory, cache):
    """The digest of the uninterrupted run in a single process."""
    from tests.runs import run_alone
    folder = tmp_path_factory.mktemp("straight")
    config = Desk(folder, cache).folder / "configs" / "quickstart.yaml"
    assert run_alone(str(config), [], str(folder / "run")) == 0
    return json.loads((folder / "run" / "result.json").read_text())["digest"]
