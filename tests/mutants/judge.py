"""Copies of the tree with a worker each: they map test files and judge mutants, several at a time."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

from tests.mutants import tracer
from tests.mutants.choice import Choice
from tests.mutants.suite import Suite

LEFT = shutil.ignore_patterns(".git", ".mutants", ".venv*", ".nox", ".*_cache", ".hypothesis", "__pycache__", "runs",
                              "build", "*.egg-info")      # not copied
# pytest's exit code if there is no test of a name.
USAGE = 4
# A mutant that needs more than so many times the tests' CPU seconds hangs.
CPU_FACTOR = 4.
# Limit of wall time, long enough for any load of the machine.
WALL_S = 900.


@dataclass
class Mutant:
    """A changed file, and the outcome of its tests."""
    path: str
    line: int
    last: int
    # the text of the whole changed file
    text: str
    # the line before the change
    old: str
    # the line after the change
    new: str
    # the operator, or the name of the definition
    what: str
    scope: str = ""
    # killed, timeout, survived or uncovered; "equivalent" ones are not run
    outcome: str = ""
    # the test that failed
    by: str = ""
    cpu: float = 0.
    wall: float = 0.
    tests: int = 0

    @property
    def package(self) -> str:
        return package_of(self.path)


def package_of(path: str) -> str:
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else "root"


@dataclass
class Copy:
    """A copy of the tree and a warm process in it."""
    root: Path
    place: Path
    process: subprocess.Popen = field(init=False)
    tried: bool = False

    def __post_init__(self):
        tree, scratch = self.place / "tree", self.place / "scratch"
        scratch.mkdir(parents=True)
        shutil.copytree(self.root, tree, ignore=LEFT, symlinks=True)
        (tree / "sitecustomize.py").write_text(tracer.STARTER)
        self.tree = tree
        self.files = self.count_files()
        environment = os.environ | {
            "OMP_NUM_THREADS": "1", "MUTANTS_SCRATCH": str(scratch), "PYTHONPATH": str(tree)}
        # Bytecode is checked by its source's hash; by time and size, one mutant may be taken for another.
        words = ("-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "fedmpi", "tests")
        subprocess.run([sys.executable, *words], cwd=tree, check=True, stdout=subprocess.DEVNULL)
        self.process = subprocess.Popen([sys.executable, "-m", "tests.mutants.worker"], cwd=tree, env=environment,
                                        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def count_files(self) -> int:
        """Return how many Python files the copy has."""
        return sum(1 for _ in self.tree.rglob("*.py"))

    def ask(self, **request) -> dict:
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a worker has ended; see its message above")
        return json.loads(line)

    def map(self, file: str, suite: Suite):
        """Run a test file under the tracer."""
        recorded = self.place / "map.json"
        recorded.unlink(missing_ok=True)
        answer = self.ask(tests=[file], cpu=3600., wall=7200., map=str(recorded))
        if recorded.exists():
            suite.keep(file, recorded)
        return answer

    def judge(self, mutant: Mutant, choice: Choice, budget: float, patience: float) -> Mutant:
        """Run the tests of a mutant until one fails."""
        stages = choice.stages(mutant.path, mutant.line, mutant.last, budget)
        if not stages:
            mutant.outcome = "uncovered"
            return mutant
        # Tests that cannot run here at all would "notice" every mutant.
        if not self.tried:
            answer = self.ask(tests=stages[0][0], cpu=600., wall=WALL_S)
            if answer["code"] or answer["why"]:
                raise RuntimeError(f"without a mutant, too, {answer['failed']} fails {answer['why']}\n{answer['tail']}")
            self.tried = True
        target = self.tree / mutant.path
        original = target.read_text()
        target.write_text(mutant.text)
        try:
            for names, cost in stages:
                limits = {"cpu": CPU_FACTOR * cost + patience, "wall": WALL_S}
                answer = self.ask(tests=names, **limits)
                mutant.cpu += answer["cpu"]
                # The mutant has changed the name of a test's parameter.
                if answer["code"] == USAGE and not answer["failed"]:
                    answer = self.ask(tests=sorted({name.partition("[")[0] for name in names}), **limits)
                    mutant.cpu += answer["cpu"]
                mutant.wall += answer["wall"]
                mutant.tests += answer["ran"]
                mutant.outcome = ("timeout" if answer["why"] else "survived" if answer["code"] == 0 else "killed")
                mutant.by = answer["why"] or answer["failed"]
                if mutant.outcome == "killed" and not mutant.by:
                    mutant.by = f"the tests' process ended with code {answer['exit']}: {answer['tail'][-300:]}"
                if mutant.outcome != "survived":
                    break
        finally:
            self.restore(target, original)
        return mutant

    def restore(self, target: Path, original: str):
        """Put the text of a file back. If the mutant has deleted parts of the copy, make the copy anew."""
        if self.count_files() == self.files:
            target.write_text(original)
            return
        self.close()
        shutil.rmtree(self.place)
        self.__post_init__()

    def close(self):
        self.process.terminate()
        self.process.wait(60)


class Pool:
    """Some copies that work at the same time."""

    def __init__(self, root: Path, jobs: int):
        self.root, self.jobs, self.free = root, jobs, Queue()

    def __enter__(self):
        self.place = tempfile.TemporaryDirectory(prefix="fedmpi-mutants-", ignore_cleanup_errors=True)
        self.copies = [Copy(self.root, Path(self.place.name) / str(n)) for n in range(self.jobs)]
        for copy in self.copies:
            self.free.put(copy)
        return self

    def __exit__(self, *error):
        for copy in self.copies:
            copy.close()
        self.place.cleanup()

    def each(self, todo: Iterable, work):
        """Yield (item, work(copy, item)) as they are done."""
        results = Queue()

        def one(item):
            copy = self.free.get()
            try:
                results.put((item, work(copy, item), None))
            except Exception as error:
                results.put((item, None, error))
            finally:
                self.free.put(copy)
        todo = list(todo)
        with ThreadPoolExecutor(self.jobs) as threads:
            for item in todo:
                threads.submit(one, item)
            for _ in todo:
                item, result, error = results.get()
                if error is not None:
                    threads.shutdown(wait=False, cancel_futures=True)
                    raise error
                yield item, result
