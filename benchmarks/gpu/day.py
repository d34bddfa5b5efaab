"""Take the steps of a day one after another, each in its own process, which may crash, hang or run out of time.

A step's process is a fork of this one, which has loaded the libraries and never touches a GPU. A step that dies, or is
silent for too long, is started again after the case at which that happened."""
from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu import book
from benchmarks.gpu.notes import Notes, Options, read
from fedmpi.errors import BadInput
from fedmpi.report import gpu_day

# A variable in the environment of every program that a step starts.
MARK = "FEDMPI_GPU_DAY"
# Part of the budget that is kept for printing the table at the end.
RESERVE_S = 6.
# Time between looks at a step's process.
LOOK_S = .05
# Time between two writes of the book while a step works.
STORE_S = 2.
# Processes of one step at most, if they die.
TRIES = 5
# PR_SET_PDEATHSIG of prctl
DIES_WITH_PARENT = 1


@dataclass(frozen=True)
class Step:
    """A function that is called in its own process, and the limits of its time.

    Args:
        call: "module:function", called as function(notes, *words)
        limit_s: seconds of the whole step at most
        silent_s: seconds without a note after which the process counts as hung
        needs_s: the step is skipped if less than this is left of the budget
        words: further arguments of the function"""
    name: str
    call: str
    limit_s: float
    silent_s: float = 60.
    needs_s: float = 10.
    words: tuple[str, ...] = ()


class Day:
    """Takes the steps of a part within their common budget, and fills the book."""

    def __init__(self, part: str, steps: list[Step], to: Path, budget_s: float, device: str, small: bool, head: dict):
        self.part, self.steps, self.to, self.end = part, steps, to, time.monotonic() + budget_s - RESERVE_S
        self.path, self.log = to / gpu_day.BOOK_NAME, to / "gpu_day.log"
        self.device, self.small = device, small
        to.mkdir(parents=True, exist_ok=True)
        self.book = gpu_day.load_book(self.path) if self.path.exists() else gpu_day.make_blank_book(**head)
        for key in ("device", "small"):
            if self.book[key] != head[key]:
                raise BadInput(f"{self.path} is of a day with {key} {self.book[key]}, and this one has {head[key]}; "
                               "give another folder with --out")
        self.book |= head

    def go(self) -> dict:
        """Take all steps; return the book, which is also written to disk."""
        book.store(self.book, self.path)
        with tempfile.TemporaryDirectory(prefix="gpu-day-") as work:
            options = Options(self.device, self.small, Path(work))
            for step in self.steps:
                self.take(step, options)
        return self.book

    def take(self, step: Step, options: Options) -> None:
        begin, left = time.monotonic(), self.end - time.monotonic()
        if left < min(step.needs_s, step.limit_s):
            why = (f"{gpu_day.SKIPPED}{max(0, left):.0f} s of the budget are left, it needs "
                   f"{min(step.needs_s, step.limit_s):.0f}")
            if any(row["name"] == step.name for row in self.book["steps"]):
                print(f"{step.name}: {why}; what it found before stays", flush=True)
            else:
                self.close(step, False, 0., why)
            return
        gpu_day.strike_step(self.book, step.name)
        if step.name in gpu_day.FACTS_OF_ONE_STEP:
            self.book[step.name] = gpu_day.make_blank_book()[step.name]
        print(f"{step.name} ...", flush=True)
        notes, deadline, ends = options.work / f"{step.name}.jsonl", begin + min(step.limit_s, left), []
        try:
            self.try_step(step, options, notes, deadline, ends)
        except BaseException as error:
            self.close(step, False, time.monotonic() - begin, "; ".join([*ends, f"the day ended: {name_end(error)}"]))
            raise
        ends += [f"there was no time for {late}" for late in named(notes, "late")]
        self.close(step, not ends, time.monotonic() - begin, "; ".join(ends))

    def try_step(self, step: Step, options: Options, notes: Path, deadline: float, ends: list[str]) -> None:
        """Run a step's process, and others behind the case at which it died; add why they did not end well to `ends`.
        """
        for _ in range(TRIES):
            cases = len(named(notes, "case"))
            why = Try(self, step, options, notes, deadline).watch()
            ends += [why] if why else []
            went_on = len(named(notes, "case")) > cases
            if not why or not went_on or deadline - time.monotonic() < step.needs_s / 2:
                return
            book.note(self.book, step.name, "lost", {"case": named(notes, "case")[-1], "why": why})

    def close(self, step: Step, ok: bool, seconds: float, why: str) -> None:
        """Enter how a step ended."""
        book.note(self.book, step.name, "steps", {
            "name": step.name, "part": self.part, "ok": ok, "seconds": round(seconds, 1), "why": why,
            "when": self.book["when"], "commit": self.book["commit"]})
        book.store(self.book, self.path)
        print(f"{step.name}: {'ok' if ok else why}, {seconds:.1f} s", flush=True)


class Try:
    """Runs one process of a step."""

    def __init__(self, day: Day, step: Step, options: Options, notes: Path, deadline: float):
        self.day, self.step, self.notes, self.deadline, self.mark = day, step, notes, deadline, uuid.uuid4().hex
        self.entered, self.stored, self.news = len(read(notes)), time.monotonic(), time.monotonic()
        # whether the book has notes that its file lacks
        self.unstored = False
        context = multiprocessing.get_context("fork")
        self.log = options.work / f"{self.mark}.log"
        self.process = context.Process(target=work, args=(step, options, notes, deadline, self.log, self.mark,
                                                          os.getpid()))

    def watch(self) -> str:
        """Enter the notes of the process as they come until it ends; return why it did not end well, or ""."""
        try:
            with later(signal.SIGTERM):
                self.process.start()
            why = self.wait()
        finally:
            self.kill()
            self.keep_log()
            self.enter()
        code = self.process.exitcode
        if not why and code:
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            why = f"{how}{self.where()}: {last_line(self.log)}"
        return why

    def wait(self) -> str:
        while self.process.is_alive():
            self.process.join(LOOK_S)
            self.enter()
            now = time.monotonic()
            if now > self.deadline:
                return f"ended{self.where()}: its time was over"
            if now - self.news > self.step.silent_s:
                return f"ended{self.where()}: nothing was heard for {self.step.silent_s:.0f} s"
        return ""

    def where(self) -> str:
        cases = named(self.notes, "case")
        return f" in case {cases[-1]}" if cases else ""

    def enter(self) -> None:
        """Enter the notes that came since the last look."""
        lines = read(self.notes)
        if len(lines) > self.entered:
            self.news = time.monotonic()
        for line in lines[self.entered:]:
            if "section" in line:
                book.note(self.day.book, self.step.name, line["section"], line["values"])
        self.unstored |= len(lines) > self.entered
        self.entered = len(lines)
        if self.unstored and time.monotonic() - self.stored > STORE_S:
            book.store(self.day.book, self.day.path)
            self.stored, self.unstored = time.monotonic(), False

    def keep_log(self) -> None:
        """Append what the process printed to the day's log."""
        self.log.touch()
        with self.day.log.open("a") as file:
            file.write(self.log.read_text(errors="replace"))

    def kill(self) -> None:
        """Kill the process, then all programs that it started."""
        # SIGTERM came before the process was started.
        if self.process.pid is None:
            return
        if self.process.is_alive():
            self.process.kill()
        # A process that waits in the driver may stay; the day goes on without it.
        self.process.join(10)
        # Look twice: a program may be just starting.
        for _ in range(2):
            for pid in marked(self.mark):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(LOOK_S)


@contextlib.contextmanager
def later(number: signal.Signals):
    """Delay a signal until the block is over: during the start of a process it would leave that process running."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def work(step: Step, options: Options, path: Path, deadline: float, log: Path, mark: str, parent: int) -> None:
    """Run a step in this process, which was forked for it."""
    die_with(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.environ[MARK] = mark
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.stdout, sys.stderr = (os.fdopen(standard, "w", buffering=1, closefd=False) for standard in (1, 2))
    print(f"--- {step.name}")
    faulthandler.enable(sys.stderr)
    module, _, function = step.call.partition(":")
    getattr(importlib.import_module(module), function)(Notes(path, options, deadline), *step.words)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, so that nothing stays on the GPU."""
    ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
    # The parent ended before the kernel was asked.
    if os.getppid() != parent:
        os._exit(1)


def marked(mark: str) -> list[int]:
    """Return the ids of the processes that have a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
    return found


def name_end(error: BaseException) -> str:
    return "asked to stop" if isinstance(error, SystemExit | KeyboardInterrupt) else f"{type(error).__name__}: {error}"


def named(notes: Path, key: str) -> list[str]:
    return [line[key] for line in read(notes) if key in line]


def last_line(log: Path) -> str:
    """Return the last line of a log that names an error, otherwise the last line; the report of a crash says little."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"[Ee]rror\b|assert", line)
               and not line.startswith(("Fatal Python error", "Extension modules", "File "))]
    return (telling or lines or [""])[-1][:200]
