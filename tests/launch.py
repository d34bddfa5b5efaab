"""Start MPI jobs under a real launcher from tests, and clean up after them."""
from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent
# seconds after which a job that hangs is ended; no test depends on it
LIMIT = 240
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
# Here Python keeps text that an output refuses, and tries again at its end, as it does for most users.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
# The name of a variable in the environment of every process of a job.
MARK = "FEDMPI_TEST_JOB"
# Open MPI sets the first of these, MPICH and srun --mpi=pmi2 the second, PMIx the third.
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def find_launcher() -> str | None:
    """Return the path of the `mpiexec` beside Python, or else of the one on PATH."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    return str(mpiexec) if mpiexec.exists() else shutil.which("mpiexec")


def choose_stop_signal() -> signal.Signals:
    """Return the signal by which a launcher is asked to stop.

    Open MPI's mpirun, whose version 4 calls itself OpenRTE, kills its ranks 2 s after SIGTERM."""
    version = subprocess.run([find_launcher(), "--version"], capture_output=True, text=True).stdout
    return signal.SIGUSR1 if "Open MPI" in version or "OpenRTE" in version else signal.SIGTERM


def command(ranks: int, *words, python=sys.executable) -> list[str]:
    """Return the command line that runs `python` with `words` on some ranks; a single rank needs no launcher."""
    return [*([find_launcher(), "-n", str(ranks)] if ranks > 1 else []), str(python), *map(str, words)]


def start(ranks: int, *words, cwd=ROOT, python=sys.executable) -> subprocess.Popen:
    """Start a job, whose processes can be found by its `mark`. `python` may be a warm one (see warm.py)."""
    mark = uuid.uuid4().hex
    job = subprocess.Popen(command(ranks, *words, python=python), cwd=cwd, env=ENVIRONMENT | {MARK: mark}, text=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    job.mark = mark
    return job


def rank_of(environment) -> int | None:
    """Return the rank that an environment gives its process, or None, as for the launcher itself."""
    return next((int(environment[name]) for name in RANKS if name in environment), None)


def processes(job) -> dict[int, dict[str, str]]:
    """Return the environment of each living process of a job, the launcher included, as /proc shows them."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            text = (path / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        # The environment of a process that has ended is empty.
        if f"{MARK}={job.mark}" in text:
            found[int(path.name)] = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    return found


def end(job):
    """Kill all processes of a job that are left."""
    for pid in processes(job):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.kill()


def finish(job: subprocess.Popen) -> subprocess.CompletedProcess:
    """Wait for a job, and return its code and output. End all of it if it hangs."""
    try:
        out, error = job.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        end(job)
        out, error = job.communicate()
        raise AssertionError(f"the job did not end:\n{out}\n{error}") from None
    return subprocess.CompletedProcess(job.args, job.returncode, out, error)


def module(ranks: int, *words) -> str:
    """Run `python -m words` on some ranks to its end; return what it printed."""
    done = finish(start(ranks, "-m", *words))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
