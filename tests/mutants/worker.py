"""Run as `python -m tests.mutants.worker` in a copy of the tree: a warm process that forks a child for each request.

It has loaded what takes long to load, but nothing of fedmpi, so a child imports fedmpi as it is in the copy.
A request is a line of JSON on stdin: `tests` (node ids), limits, and the file of a `map`. The answer is a line on
stdout."""
from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

HEAVY = ("numpy", "scipy.sparse", "scipy.optimize", "scipy.stats", "torch", "torch.func", "torch._dynamo",
         "torchvision", "sklearn.cluster", "sklearn.metrics", "sklearn.datasets", "h5py", "yaml", "pydantic",
         "annotated_types", "typer.testing", "rich.table", "rich.console", "rich.progress", "jinja2",
         "matplotlib.pyplot", "hypothesis", "hypothesis.strategies", "hypothesis.extra.numpy", "pytest", "pandas",
         "safetensors.torch")
# PR_SET_CHILD_SUBREAPER of prctl: orphans below become children of this process.
SUBREAPER = 36
# A child that uses less than IDLE_CPU_S in IDLE_S hangs: it only checks whether others end.
IDLE_S, IDLE_CPU_S = 40., 1.
TICK = os.sysconf("SC_CLK_TCK")


def below() -> dict[int, float]:
    """Return the CPU seconds of all processes below this one, including their ended children."""
    parents, used = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                parents[int(entry)] = int(fields[1])
                used[int(entry)] = sum(map(int, fields[11:15])) / TICK
    found = {}
    for pid in parents:
        up, chain = pid, 0
        while up in parents and up != os.getpid() and chain < 64:
            up, chain = parents[up], chain + 1
        if up == os.getpid() and pid != up:
            found[pid] = used[pid]
    return found


def sweep_up():
    """Kill all processes that are left below this one, and wait for their end."""
    for _ in range(200):
        left = below()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        time.sleep(.02)


def leave(*_):
    """End at once; freeing all that is loaded would take a second."""
    sweep_up()
    os._exit(0)


def waited() -> float:
    times = os.times()
    return times.children_user + times.children_system


def watch(child: int, cpu_limit: float, wall_limit: float) -> tuple[int | None, str]:
    """Wait for a child; return its exit code, or None and why it was given up."""
    begin, base, nap, parent = time.monotonic(), waited(), .01, os.getppid()
    moved, used = begin, 0.
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), ""
        time.sleep(nap)
        nap = min(nap * 1.3, .5)
        now = time.monotonic()
        if now - begin > 2:
            cpu = waited() - base + sum(below().values())
            if cpu > used + IDLE_CPU_S:
                moved, used = now, cpu
            if cpu > cpu_limit:
                return None, "more CPU s than patience"
            if now - moved > IDLE_S:
                return None, f"waits for {IDLE_S:.0f} s"
        if os.getppid() != parent:
            leave()
        if now - begin > wall_limit:
            return None, f"more than {wall_limit:.0f} s"


class Verdict:
    """Keeps the first test that fails."""

    def __init__(self):
        self.failed, self.ran = "", 0

    def pytest_runtest_logreport(self, report):
        self.ran += report.when == "call"
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report):
        if report.failed and not self.failed:
            self.failed = report.nodeid


def run_tests(tests: list[str], answer: str, folder: str, mapped: str | None):
    """Run pytest in the child; write the outcome into the file `answer`."""
    import pytest
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    # Keep the user's cache of fonts.
    os.environ["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    # A mutant may leave wrong data sets in this folder.
    os.environ["HOME"] = folder
    out = os.open(f"{folder}/output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number in (1, 2):
        os.dup2(out, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    plugins = [verdict := Verdict()]
    os.environ.pop("PYTEST_ADDOPTS", None)
    # Without the project's options all tests run in this process.
    words = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", "--basetemp", f"{folder}/base", "--tb", "line"]
    if mapped:
        from tests.mutants.record import Recorder
        os.mkdir(f"{folder}/traces")
        plugins.append(recorder := Recorder(os.getcwd(), f"{folder}/traces"))
    else:
        words.append("-x")
    code = int(pytest.main([*words, *tests], plugins=plugins))
    if mapped:
        recorder.write(mapped)
    Path(answer).write_text(json.dumps({"code": code, "failed": verdict.failed, "ran": verdict.ran}))
    os._exit(0)


def serve(request: dict) -> dict:
    """Answer one request."""
    folder = tempfile.mkdtemp(prefix="run-", dir=os.environ["MUTANTS_SCRATCH"])
    answer, base, begin = f"{folder}/answer", waited(), time.monotonic()
    child = os.fork()
    if not child:
        try:
            run_tests(request["tests"], answer, folder, request.get("map"))
        finally:
            os._exit(3)
    code, why = watch(child, request["cpu"], request["wall"])
    sweep_up()
    found = {"code": 3, "failed": "", "ran": 0}
    if os.path.exists(answer) and not why:
        found = json.loads(Path(answer).read_text())
    with open(f"{folder}/output", errors="replace") as file:
        tail = file.read()[-3000:]
    shutil.rmtree(folder, ignore_errors=True)
    return found | {"exit": code, "why": why, "cpu": waited() - base, "wall": time.monotonic() - begin, "tail": tail}


def main():
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    for name in os.environ.get("MUTANTS_LOAD", " ".join(HEAVY)).split():
        with suppress(ImportError):
            importlib.import_module(name)
    signal.signal(signal.SIGTERM, leave)
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), file=answers, flush=True)
    leave()


if __name__ == "__main__":
    main()
