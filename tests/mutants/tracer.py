"""Which lines of fedmpi run, and for whom: a tracer that goes along into forks and into Python processes started below.

A line counts once per context (a test, or the setting up of a fixture). In the process that started the tracer it is
kept in memory; other processes write it down at once, because they may be killed or leave by os._exit."""
from __future__ import annotations

import os
import sys
import threading

FOLDER = "FEDMPI_MUTANTS_MAP"      # in the environment: where the processes that are started below write
OPTIMIZED = 1                      # the flag of a code object that is a function's, not a module's or a class's
# what a tree's sitecustomize.py says, for Python processes whose PYTHONPATH is that tree
STARTER = f"""import os
if "{FOLDER}" in os.environ:
    from tests.mutants import tracer
    tracer.follow()
"""


class Tracer:
    """Notes the lines of functions of the files below `root`."""

    def __init__(self, root: str, folder: str):
        self.prefix, self.folder = os.path.join(root, "fedmpi") + os.sep, folder
        self.cut = len(root) + 1
        self.kept = []                       # code objects whose ids are in use
        self.file = None                     # where another process than the first writes
        self.found: dict[str, dict[str, set[int]]] = {}      # context -> file -> lines
        self.enter("import")

    def enter(self, context: str):
        """From now on lines are run for somebody else."""
        self.context = context
        self.left: dict[int, set[int]] = {}      # the lines of each function not yet seen in this context
        self.lines = self.found.setdefault(context, {})

    def start(self):
        threading.settrace(self.call)
        sys.settrace(self.call)

    def stop(self):
        threading.settrace(None)
        sys.settrace(None)

    def write(self):
        """Write lines down at once from now on."""
        path = os.path.join(self.folder, f"out-{os.getpid()}")
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.left = {}

    def call(self, frame, event, arg):
        code = frame.f_code
        if not code.co_filename.startswith(self.prefix) or not code.co_flags & OPTIMIZED:
            return None
        left = self.left.get(id(code))
        if left is None:
            self.kept.append(code)
            left = self.left[id(code)] = {line for *_, line in code.co_lines() if line}
        self.note(code, left, code.co_firstlineno)
        return self.step if left else None

    def step(self, frame, event, arg):
        if event == "line":
            code = frame.f_code
            left = self.left.get(id(code))
            if left is None:      # the context has changed within the function
                return self.call(frame, event, arg)
            if frame.f_lineno in left:
                self.note(code, left, frame.f_lineno)
                if not left:
                    frame.f_trace_lines = False
        return self.step

    def note(self, code, left: set[int], line: int):
        if line not in left:
            return
        left.discard(line)
        path = code.co_filename[self.cut:]
        if self.file is not None:
            os.write(self.file, f"{self.context}\t{path}\t{line}\n".encode())
        else:
            self.lines.setdefault(path, set()).add(line)


def begin(root: str, folder: str) -> Tracer:
    """Trace this process, and those that it will start."""
    tracer = Tracer(root, folder)
    os.environ[FOLDER] = folder
    os.register_at_fork(after_in_child=tracer.write)
    tracer.start()
    return tracer


def follow():
    """Trace a process that was started below, for the context that the first process was in at that time."""
    folder = os.environ[FOLDER]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    tracer = Tracer(root, folder)
    with open(os.path.join(folder, "context")) as file:
        tracer.enter(file.read())
    tracer.write()
    os.register_at_fork(after_in_child=tracer.write)
    tracer.start()


def collect(folder: str, found: dict[str, dict[str, set[int]]]):
    """Add what other processes have written."""
    for name in os.listdir(folder):
        if name.startswith("out-"):
            with open(os.path.join(folder, name)) as file:
                for text in file:
                    if text.endswith("\n"):      # a process may be killed while it writes
                        context, path, line = text[:-1].split("\t")
                        found.setdefault(context, {}).setdefault(path, set()).add(int(line))
