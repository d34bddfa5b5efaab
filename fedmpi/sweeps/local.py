"""Run a job's runs on this machine, some at a time; one that fails does not stop the others."""
from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedmpi import errors
from fedmpi.errors import BadInput, StorageError
from fedmpi.hints import VERY_CLOSE, find_close_name
from fedmpi.json_values import JsonObject
from fedmpi.paths import is_wrong_path
from fedmpi.progress import write_stdout
from fedmpi.stop_signals import SIGNALS, install_handler
from fedmpi.storage import run_status
from fedmpi.storage.atomic import report_failed_writes
from fedmpi.storage.job_log import IN_USE_FOR_SWEEP, find_job_log, read_job_log
from fedmpi.storage.lock import is_run_alive
from fedmpi.sweeps.board import Board
from fedmpi.sweeps.job import PlannedRun
from fedmpi.task import find_task
from fedmpi.text import format_duration, printable

# Codes of runs that were asked to stop before they could save: of a process, a shell, and MPICH's mpiexec.
ENDED_BY_STOP = [code for number in (signal.SIGTERM, signal.SIGUSR1) for code in (-number, 128 + number, number)]
# Seconds between two looks at the processes of the runs.
POLL_S = .2


@dataclass
class RunProcess:
    """A run under way."""
    run: PlannedRun
    process: subprocess.Popen[bytes]
    begin: float
    # place among the runs at once, which decides on its GPUs
    slot: int
    # whether it was asked to save and stop
    asked: bool = False


class Sweep:
    """The runs that wait, those under way, and what became of the others.

    Args:
        measures: the keys of result.json that the job's tables show, that of its first table first"""

    def __init__(self, runs: list[PlannedRun], at_once: int, ranks: int, measures: Sequence[str] = ()):
        # those of which nothing was said yet
        self.measures, self.main = list(measures), next(iter(measures), None)
        self.at_once, self.launcher, self.runs = at_once, find_launcher(ranks), runs
        # Open MPI's mpiexec kills its ranks 2 s after SIGTERM. SIGUSR1 every mpiexec passes on.
        self.stop_signal = signal.SIGTERM if ranks == 1 else signal.SIGUSR1
        found = [(run, run.outcome().shorten()) for run in runs]
        self.waiting = [run for run, outcome in found if outcome.state != "finished"]
        self.finished = len(runs) - len(self.waiting)
        self.elsewhere = [run for run in self.waiting if is_run_alive(run.folder)]
        self.waiting = [run for run in self.waiting if run not in self.elsewhere]
        # those to be started again after a start that did not end well
        self.crashed = [(run, outcome) for run, outcome in found
                        if outcome.state in ("failed", "killed") and run not in self.elsewhere]
        self.gpus = list_visible_gpus()
        self.under_way: list[RunProcess] = []
        self.failed: list[tuple[PlannedRun, str]] = []
        # whether runs are to save and stop; whether they are to end at once, and how many did
        self.stopping = self.killing = False
        self.killed = 0
        # whether a run was started, and whether a line of the job was lost
        self.begun = self.silenced = False

    def go(self) -> int:
        """Run everything. Returns an exit code: 0 all finished, 1 some failed, 75 some are left."""
        install_handler(SIGNALS, self.stop)
        with Board(self.runs) as self.board:
            if self.finished:
                self.board.say(f"{self.finished} of {len(self.runs)} runs are finished already")
            if self.elsewhere:
                self.board.say(f"{len(self.elsewhere)} of {len(self.runs)} runs are under way elsewhere: left alone")
            for run, outcome in self.crashed:
                self.board.say(f"{run.name} {'was ' * (outcome.state == 'killed')}{outcome.state} before, and is "
                               f"started again: {outcome.said}")
            while self.under_way or self.waiting and not self.stopping:
                while self.waiting and len(self.under_way) < self.at_once and not self.stopping:
                    run = self.waiting.pop(0)
                    if not self.is_done_elsewhere(run):
                        self.start(run)
                self.show()
                time.sleep(POLL_S)
                for started in [s for s in self.under_way if s.process.poll() is not None]:
                    self.under_way.remove(started)
                    self.record_end(started)
            self.show(at_end=True)
            if self.killed:
                self.board.say(f"Ctrl-C after a first signal ended {self.killed} of {len(self.runs)} runs at once: "
                               "what they had not saved is lost; the same command continues")
        return self.conclude()

    def show(self, at_end: bool = False) -> None:
        """Bring the table up to date, see `Board.show`."""
        self.board.show([started.run for started in self.under_way], self.waiting, at_end)

    def stop(self, number: int, frame: object) -> None:
        """Ask the runs under way to save and stop; at a second Ctrl-C, kill them."""
        self.killing = self.killing or self.stopping and number == signal.SIGINT
        self.stopping = True
        for started in self.under_way:
            self.ask(started)

    def ask(self, started: RunProcess) -> None:
        """Ask a run to save and stop, or kill it and its group of processes."""
        started.asked = True
        if started.process.poll() is not None:
            return
        if self.killing:
            # Ranks may have groups of their own, but do not outlive their mpiexec.
            with suppress(ProcessLookupError):
                os.killpg(started.process.pid, signal.SIGKILL)
        else:
            started.process.send_signal(self.stop_signal)

    def is_done_elsewhere(self, run: PlannedRun) -> bool:
        """Say whether another process, such as another sweep of this job, has finished a run meanwhile or is at it."""
        self.board.forget(run)
        found = run.outcome()
        if found.state == "finished":
            self.finished += 1
            self.board.say(f"{run.name} was finished elsewhere: {found}")
            return True
        if alive := is_run_alive(run.folder):
            self.board.say(f"{run.name} is under way elsewhere: left alone")
        return alive

    def start(self, run: PlannedRun) -> None:
        """Start a run. One that cannot be started has failed, and the others go on."""
        starts = read_job_log(run.folder).starts
        slot = min(set(range(self.at_once)) - {started.slot for started in self.under_way})
        path = find_job_log(run.folder)
        try:
            with report_failed_writes(path):
                run.folder.parent.mkdir(parents=True, exist_ok=True)
                log = open(path, "a")  # noqa: SIM115  (closed below)
            self.note(run, f"start {starts + 1} on {socket.gethostname()}: "
                      f"{shlex.join([str(run.config), *run.overrides])}")
            with log:
                process = subprocess.Popen(
                    [*self.launcher, *run.words()], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env=os.environ | choose_gpu_setting(self.gpus, slot, self.at_once),
                    # In a session of its own, Ctrl-C reaches it once, through us. It also makes a group of processes.
                    start_new_session=True)
        except (OSError, StorageError) as error:
            # The user gave a folder that takes no run at all.
            if not self.begun and is_wrong_path(error.__cause__) and not self.is_of_one_run(error.__cause__):
                raise
            self.record_failure(run, f"not started: {error}")
            return
        self.under_way.append(RunProcess(run, process, time.perf_counter(), slot))
        self.begun = True
        # The signal came while the process was being made.
        if self.stopping and not self.under_way[-1].asked:
            self.ask(self.under_way[-1])

    def is_of_one_run(self, error: BaseException | None) -> bool:
        """Say whether an error is about a path inside the folder that all runs share, and so about some runs alone."""
        shared = Path(os.path.commonpath([os.path.abspath(run.folder) for run in self.runs]))
        return shared.is_dir() and shared in Path(os.path.abspath(str(getattr(error, "filename", "")))).parents

    @property
    def left(self) -> int:
        """How many runs have neither finished nor failed."""
        return len(self.runs) - self.finished - len(self.failed)

    def record_end(self, started: RunProcess) -> None:
        """Say what became of a run."""
        run, code = started.run, started.process.returncode
        killed = self.killing and code == -signal.SIGKILL
        stopped = code == errors.SAVED or self.stopping and code in ENDED_BY_STOP or killed
        self.killed += killed
        # It was refused because another process had begun it a moment before.
        elsewhere = code == errors.BAD_INPUT and is_run_alive(run.folder)
        self.note(run, IN_USE_FOR_SWEEP if elsewhere else f"{'stopped' if stopped else 'ended'} with code {code}")
        found = run.outcome()
        if elsewhere:
            self.board.say(f"{run.name} is under way elsewhere: left alone")
        elif code == errors.FINISHED and (result := found.result):
            self.finished += 1
            task = find_task(result)
            self.board.say(f"finished {run.name}: {task.format(result[task.key])} "
                           f"({run_status.describe_best(result)}) in "
                           f"{format_duration(time.perf_counter() - started.begin)}; {self.finished} of "
                           f"{len(self.runs)}, {len(self.waiting)} waiting")
            self.warn_of_measures(run, result)
        elif not stopped:
            self.record_failure(run, found.said)

    def warn_of_measures(self, run: PlannedRun, result: JsonObject) -> None:
        """Say once of a measure of the job that a result lacks it. That a method lacks a measure of a further table is
        no fault, unless the result has one that is spelt almost like it."""
        for measure in self.measures.copy():
            near = "" if measure in result else find_close_name(measure, result, VERY_CLOSE)
            if near or measure == self.main and measure not in result:
                self.board.say(f"warning: {run.name} has no measure {measure}, which a table of the job is to show; if "
                               f"the job misspells it, correct it there{f' (did you mean {near}?)' if near else ''}")
                self.measures.remove(measure)

    def record_failure(self, run: PlannedRun, why: str) -> None:
        """Say that a run has failed, and why."""
        self.failed.append((run, why))
        self.board.say(f"failed {run.name}: {why}")

    def note(self, run: PlannedRun, what: str) -> None:
        """Write a line of the job into the run's log. A disk that refuses it is named once, for runs do without."""
        try:
            write_job_line(run, what)
        except StorageError as error:
            if not self.silenced:
                self.board.say(f"warning: {error}; the runs go on, and `fedmpi summary` lacks what is lost here")
            self.silenced = True

    def conclude(self) -> int:
        """Print what became of all runs; return the exit code."""
        write_stdout(f"{self.finished} of {len(self.runs)} runs finished"
                     + (f", {len(self.failed)} failed" if self.failed else "")
                     + (f", {self.left} left: the same command continues" if self.left else "") + "\n")
        for run, why in self.failed:
            write_stdout(printable(f"failed {run.name}: {why}\n  log: {find_job_log(run.folder)}") + "\n")
        return errors.FAILED if self.failed else errors.SAVED if self.left else errors.FINISHED


def write_job_line(run: PlannedRun, what: str) -> None:
    """Write a line of the job into the run's log, in the form that `outcome` reads."""
    path = find_job_log(run.folder)
    # A path may have bytes that are not text in the locale's encoding.
    with report_failed_writes(path), open(path, "a", errors="backslashreplace") as log:
        log.write(f"job sweep: {what}\n")


def list_visible_gpus() -> list[str]:
    """Return the GPUs that a run here would see, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    return [str(i) for i in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]


def choose_gpu_setting(gpus: list[str], slot: int, at_once: int) -> dict[str, str]:
    """Return the setting that leaves a run its share of the GPUs: each its own, or one of too few."""
    if len(gpus) < 2 or at_once < 2:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[slot::at_once] or [gpus[slot % len(gpus)]])}


def find_launcher(ranks: int) -> list[str]:
    """Return the words that start fedmpi on some ranks of this machine. Raises BadInput without a launcher."""
    fedmpi = [sys.executable, "-m", "fedmpi"]
    if ranks == 1:
        return fedmpi
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise BadInput(f"--ranks {ranks} needs an mpiexec on the PATH; install the extra fedmpi[mpich], or load an MPI")
    return [mpiexec, "-n", str(ranks), *fedmpi]
