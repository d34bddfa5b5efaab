"""Run a job's runs on this machine, some at a time; one that fails does not stop the others."""
from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fedmpi import errors
from fedmpi.errors import BadInput
from fedmpi.progress import duration, percent
from fedmpi.sweep import outcome
from fedmpi.sweep.job import Planned

POLL = .2      # seconds
LOG = "sweep.txt"


@dataclass
class Started:
    run: Planned
    process: subprocess.Popen
    begin: float


class Sweep:
    """The runs that wait, those under way, and what became of the others."""

    def __init__(self, runs: list[Planned], at_once: int, ranks: int):
        self.at_once, self.launcher, self.total = at_once, launcher(ranks), len(runs)
        self.waiting = [run for run in runs if outcome.of(run).state != "finished"]
        self.finished = self.total - len(self.waiting)
        self.under_way: list[Started] = []
        self.failed: list[tuple[Planned, str]] = []
        self.stopping = False

    def go(self) -> int:
        """Run everything. Returns an exit code: 0 all finished, 1 some failed, 75 asked to stop."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)
        if self.finished:
            print(f"{self.finished} of {self.total} runs are finished already", flush=True)
        while self.under_way or self.waiting and not self.stopping:
            while self.waiting and len(self.under_way) < self.at_once and not self.stopping:
                self.start(self.waiting.pop(0))
            time.sleep(POLL)
            for started in [s for s in self.under_way if s.process.poll() is not None]:
                self.under_way.remove(started)
                self.note(started)
        return self.conclude()

    def stop(self, number, frame) -> None:
        """Ask the runs under way to save and stop."""
        self.stopping = True
        for started in self.under_way:
            if started.process.poll() is None:
                started.process.send_signal(signal.SIGTERM)

    def start(self, run: Planned) -> None:
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        with open(log_of(run), "a") as log:
            words = [*self.launcher, *run.words()]
            log.write(f"\n$ {shlex.join(words)}\n")
            log.flush()
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       start_new_session=True)      # Ctrl-C reaches it through us, once
        self.under_way.append(Started(run, process, time.perf_counter()))

    def note(self, started: Started) -> None:
        """Say what became of a run."""
        run, code = started.run, started.process.returncode
        if code == errors.FINISHED:
            self.finished += 1
            result = outcome.of(run).result
            print(f"finished {run.name}: {percent(result['accuracy_mean'])} (best {percent(result['accuracy_best'])}) "
                  f"in {duration(time.perf_counter() - started.begin)}; {self.finished} of {self.total}, "
                  f"{len(self.waiting)} waiting", flush=True)
        elif not (self.stopping and code in (errors.SAVED, -signal.SIGTERM, 128 + signal.SIGTERM)):
            self.failed.append((run, reason(run, code)))
            print(f"failed {run.name}: {self.failed[-1][1]}", flush=True)

    def conclude(self) -> int:
        left = self.total - self.finished - len(self.failed)
        print(f"{self.finished} of {self.total} runs finished"
              + (f", {len(self.failed)} failed" if self.failed else "")
              + (f", {left} left: the same command continues" if left else ""), flush=True)
        for run, why in self.failed:
            print(f"failed {run.name}: {why}\n  log: {log_of(run)}", flush=True)
        return errors.FAILED if self.failed else errors.SAVED if left else errors.FINISHED


def log_of(run: Planned) -> Path:
    return run.folder.with_name(f"{run.folder.name}.{LOG}")


def reason(run: Planned, code: int) -> str:
    """Return what a failed run said last of why."""
    lines = log_of(run).read_text(errors="replace").rpartition("\n$ ")[2].splitlines()
    said = [line for line in lines if line.startswith("fedmpi: ")]
    return said[-1].removeprefix("fedmpi: ") if said else f"ended with code {code}" + (
        f": {lines[-1]}" if len(lines) > 1 else "")


def launcher(ranks: int) -> list[str]:
    """Return the words that start fedmpi on some ranks of this machine. Raises BadInput without a launcher."""
    fedmpi = [sys.executable, "-m", "fedmpi"]
    if ranks == 1:
        return fedmpi
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise BadInput(f"--ranks {ranks} needs an mpiexec on the PATH; install the extra fedmpi[mpich], or load an MPI")
    return [mpiexec, "-n", str(ranks), *fedmpi]
