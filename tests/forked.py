"""Start ranks as forks of this process, which has loaded PyTorch and the package already.

A job of three ranks begins within a tenth of a second, while mpiexec and three imports take three to six seconds of
processor time. In a forked rank the transport of tests/sockets.py takes the place of mpi4py; everything else is the
code that users run. tests/launch.py starts the jobs that need a real launcher or a real MPI library."""
from __future__ import annotations

import contextlib
import gc
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

from tests import launch
from tests.launch import LIMIT, ROOT
from tests.sockets import Package, SocketMPI, mesh

# Time that the other ranks have to end after one has failed.
GRACE_S = 20
# Time between two looks at the ranks.
LOOK_S = .002


def run(ranks: int, *words, cwd=ROOT, environment=None) -> CompletedProcess:
    """Run `python -m MODULE ARGUMENTS` (words) on some ranks to its end; return the code and the output of the job."""
    module, *arguments = map(str, words)

    def as_main():
        sys.argv = [module, *arguments]
        sys.path.insert(0, str(cwd))
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return call(ranks, as_main, cwd, environment)


def script(path, cwd=ROOT, environment=None, ranks=1) -> CompletedProcess:
    """Run `python PATH` on some ranks to its end; return the code and the output of the job."""
    def as_script():
        sys.argv = [str(path)]
        sys.path.insert(0, str(Path(path).parent))
        runpy.run_path(str(path), run_name="__main__")
    return call(ranks, as_script, cwd, environment)


def command(ranks: int, *words, cwd=ROOT, environment=None) -> CompletedProcess:
    """Run `fedmpi WORDS` on some ranks to its end; return the code and the output of the job.

    After this process has used a GPU, which no fork of it can use, the ranks start under a real launcher."""
    import torch
    if torch.cuda.is_initialized() and environment is None:
        return launch.finish(launch.start(ranks, "-m", "fedmpi", *words, cwd=cwd))
    def as_command():
        from fedmpi.cli import app
        sys.argv = ["fedmpi", *map(str, words)]
        app()
    return call(ranks, as_command, cwd, environment)


def call(ranks: int, function, cwd=ROOT, environment: dict[str, str] | None = None) -> CompletedProcess:
    """Run `function()` on some ranks, which `open_world()` connects; return the code and the output of the job.

    The ranks start in the folder `cwd`, with `environment` in place of that of this process."""
    def at_its_place(said_by_launcher):
        os.chdir(cwd)
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        os.environ.update(said_by_launcher)
        function()
    load()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("out", "error")]
        for path in paths:
            path.touch()
        gone = Path(folder) / "aborted"
        code = finish(start(ranks, at_its_place, paths, gone), gone)
        out, error = (path.read_text() for path in paths)
    if code is None:
        raise AssertionError(f"the job did not end:\n{out}\n{error}")
    return CompletedProcess(function, code, out, error)


@cache
def load() -> None:
    """Load what a run loads, so that the ranks need not. The first gradient of torch.func alone takes two seconds."""
    import sklearn.cluster
    import sklearn.metrics  # noqa: F401
    import torch
    import typer.main

    import fedmpi.cli
    import fedmpi.config.schema
    import fedmpi.engines.vmap
    import fedmpi.preparation  # noqa: F401
    import fedmpi.server.rounds
    fedmpi.config.schema.resolve({})
    # Each command would build its options anew, which takes longer than to refuse a wrong word.
    typer.main.get_command = cache(typer.main.get_command)
    typer.main.get_command(fedmpi.cli.app)
    torch.func.vmap(torch.func.grad(lambda w: torch.nn.functional.cross_entropy(w, w.argmax())))(torch.ones(2, 3))


def start(ranks: int, function, paths, gone: Path) -> list[int]:
    """Fork the ranks, and connect each with every other one. A rank that aborts the job creates the file `gone`."""
    ends = mesh(ranks)
    sys.stdout.flush()
    sys.stderr.flush()
    # Without this the collector of every rank would touch, and so copy, everything that is loaded.
    gc.freeze()
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if not pid:
            become(rank, ends, function, paths, gone)
        pids.append(pid)
    gc.unfreeze()
    close(ends)
    return pids


def close(ends: list[dict]) -> None:
    """Close all sockets of all ranks."""
    for rank in ends:
        for end in rank.values():
            end.close()


def become(rank: int, ends: list[dict], function, paths, gone: Path) -> None:
    """Continue as a rank of a job. Never return."""
    def abort(code: int):
        gone.touch()
        os._exit(code)

    def perform():
        ranks, sockets = len(ends), ends.pop(rank)
        close(ends)
        redirect_output(paths)
        # MPICH's launcher sets these variables.
        world = {"PMI_RANK": str(rank), "PMI_SIZE": str(ranks)} if ranks > 1 else {}
        sys.modules["mpi4py"] = Package(SocketMPI(rank, ranks, sockets, abort))
        # A run of this process, before it was forked, was alone in its world.
        if api := sys.modules.get("fedmpi.python_api"):
            api._world.clear()
        function(world)
    leave(perform)


def leave(function, end=os._exit) -> None:
    """Call a function in this fork, and end as a process does that runs it as its main module. Never return."""
    code = 1
    try:
        function()
        code = 0
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        end(code)


def redirect_output(paths) -> None:
    """Give this process its own group, new signal handlers, no input, and files for its output."""
    os.setpgid(0, 0)
    reset_signals()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number, path in enumerate(paths, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    reopen()


def reset_signals() -> None:
    """Set the handlers that a new process has."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)


def reopen() -> None:
    """Read and print by the standard files of this process, in place of those that pytest has set."""
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))


def finish(pids: list[int], gone: Path) -> int | None:
    """Wait for all ranks, and return the code of the job: the first one that is not 0; None if the job does not end.

    As a launcher does, end the other ranks if one aborts the job, is killed, or fails while they keep waiting."""
    living, codes, until = set(pids), [], time.monotonic() + LIMIT
    while living and time.monotonic() < until:
        for pid in list(living):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                living.remove(pid)
                codes.append(os.waitstatus_to_exitcode(status))
                if codes[-1]:
                    lost = codes[-1] < 0 or gone.exists()
                    until = min(until, time.monotonic() + (0 if lost else GRACE_S))
        time.sleep(LOOK_S)
    for pid in living:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if living and not any(codes):
        return None
    return next((abs(code) for code in codes if code), 0)
