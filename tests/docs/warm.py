"""Run as `python -m`: reads what to do from stdin and does each in a child process that need not load PyTorch again.

A line is JSON: words (of a fedmpi command) and its ranks, or script (a Python file), folder, and the file that takes
what is printed.
The answer is the exit code."""
from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
import traceback
from functools import partial

from tests import forked


def main():
    for late in ("sklearn.cluster", "sklearn.metrics", "torch._dynamo"):      # loaded by a run's first round
        importlib.import_module(late)
    import fedmpi.bench.command
    import fedmpi.clients.choice
    import fedmpi.commands.catalogue
    import fedmpi.data.draw
    import fedmpi.report.write
    import fedmpi.server.rounds
    import fedmpi.setup  # noqa: F401
    gc.collect()
    gc.freeze()      # or every child's collector would copy all that is loaded
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            leave(partial(do, **asked))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    leave(lambda: None)


def leave(work):
    """Do it and exit as Python would, but without the second that it takes to free all that is loaded."""
    try:
        work()
        code = 0
    except SystemExit as end:
        code = 0 if end.code is None else end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def do(folder: str, output: str, words: list[str] | None = None, script: str | None = None, ranks: int = 1):
    os.chdir(folder)
    for number, path, how in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
        os.dup2(os.open(path, how, 0o600), number)
    os.dup2(1, 2)
    if script:
        sys.path.insert(0, folder)
        runpy.run_path(script, run_name="__main__")
    elif ranks > 1:
        done = forked.command(ranks, *words, cwd=folder)
        print(done.stdout + done.stderr)
        sys.exit(done.returncode)
    else:
        from fedmpi.cli import app
        sys.argv = ["fedmpi", *words]
        app()


if __name__ == "__main__":
    main()
