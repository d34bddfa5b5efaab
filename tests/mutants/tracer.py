"""Record which lines of fedmpi run in which context, also in forks and in Python processes that are started below.

A line counts once per context (a test, or the setup of a fixture). The process that started the tracer keeps lines in
memory; other processes write them at once, because they may be killed or leave by os._exit."""
from __future__ import annotations

import os
import sys
import threading

# A variable with the folder into which processes that are started below write.
FOLDER = "FEDMPI_MUTANTS_MAP"
# The flag of code objects of functions, which those of modules and classes lack.
OPTIMIZED = 1
# The text of a tree's sitecustomize.py, for Python processes whose PYTHONPATH is that tree.
STARTER = f"""import os
if "{FOLDER}" in os.environ:
    from tests.mutants import tracer
    tracer.follow()
"""


class Tracer:
    """Records lines of functions in the files below `root`."""

    def __init__(self, root: str, folder: str):
        self.prefix, self.folder = os.path.join(root, "fedmpi") + os.sep, folder
        self.cut = len(root) + 1
        # code objects that must live on, because their ids are keys
        self.kept = []
        # the file into which any process but the first writes
        self.file = None
        # context -> file -> lines
        self.found: dict[str, dict[str, set[int]]] = {}
        self.enter("import")

    def enter(self, context: str):
        """Record lines for another context from now on."""
        self.context = context
        # lines of each function that did not yet run in this context
        self.left: dict[int, set[int]] = {}
        self.lines = self.found.setdefault(context, {})

    def start(self):
        threading.settrace(self.call)
        sys.settrace(self.call)

    def stop(self):
        threading.settrace(None)
        sys.settrace(None)

    def write(self):
        """Write lines at once from now on."""
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
            # The context has changed within the function.
            if left is None:
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
    """Trace this process and those that it will start."""
    tracer = Tracer(root, folder)
    os.environ[FOLDER] = folder
    os.register_at_fork(after_in_child=tracer.write)
    tracer.start()
    return tracer


def follow():
    """Trace a process that was started below, for the context of the first process at that time."""
    folder = os.environ[FOLDER]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    tracer = Tracer(root, folder)
    with open(os.path.join(folder, "context")) as file:
        tracer.enter(file.read())
    tracer.write()
    os.register_at_fork(after_in_child=tracer.write)
    tracer.start()


def collect(folder: str, found: dict[str, dict[str, set[int]]]):
    """Add the lines that other processes have written."""
    for name in os.listdir(folder):
        if name.startswith("out-"):
            with open(os.path.join(folder, name)) as file:
                for text in file:
                    # A process may be killed while it writes.
                    if text.endswith("\n"):
                        context, path, line = text[:-1].split("\t")
                        found.setdefault(context, {}).setdefault(path, set()).add(int(line))
