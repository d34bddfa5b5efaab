"""Run the real command under MPI: digests on several numbers of ranks and after a kill, and the report of `doctor`."""
from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from benchmarks.gpu.made import write_arrays
from benchmarks.gpu.notes import Notes

# Variables with a process's rank under MPICH, PMIx and Open MPI.
RANKS_NAMES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
RUN_LIMIT_S = 90.


def note_digests(notes: Notes) -> None:
    """Note the digests of two networks with both engines on 1, 2, 3 and 5 ranks that share the GPU."""
    options = notes.options
    trials = [(model, engine, ranks, "auto") for model in options.pick(("mlp", "cnn4"), ("mlp",))
              for engine in options.pick(("loop", "vmap"), ("loop",)) for ranks in options.pick((1, 2, 3, 5), (1, 2))]
    trials += [("mlp", "loop", 3, "off")] if not options.small else []
    for model, engine, ranks, aware in notes.cases(trials):
        begin = time.monotonic()
        result, error = notes.attempt(run, notes, ranks, f"{model}-{engine}-{ranks}-{aware}", [
            *settings(notes, model), f"engine={engine}", f"comm.cuda_aware={aware}"])
        notes.put("mpi", ranks=ranks, model=model, engine=engine, aware=aware, digest=(result or {}).get("digest", ""),
                  seconds=round(time.monotonic() - begin, 2), error=error)


def kill_and_resume(notes: Notes) -> None:
    """Kill a worker without warning, resume with another number of ranks, and compare with an undisturbed run."""
    rounds, every = notes.options.pick((40, 2), (20, 5))
    words = [*settings(notes, "mlp"), f"rounds={rounds}", f"checkpoint.every={every}", "engine=loop"]
    result, error = notes.attempt(run, notes, 1, "straight", words)
    straight = (result or {}).get("digest", "")
    notes.put("mpi", ranks=1, model="mlp", engine="loop", aware="undisturbed", digest=straight, seconds=None,
              error=error)
    begin = time.monotonic()
    result, error = notes.attempt(killed, notes, words)
    notes.put("mpi", ranks=notes.options.pick(2, 1), model="mlp", engine="loop", aware="killed, resumed", error=error,
              digest=(result or {}).get("digest", ""), seconds=round(time.monotonic() - begin, 2))


def killed(notes: Notes, words: list[str]) -> dict:
    """Kill rank 1 of 3 after the first checkpoint, resume on 2 ranks, return the result; with `small` 2 and 1 ranks."""
    out = notes.options.work / "runs" / "killed"
    job = launch(notes, notes.options.pick(3, 2), command("killed", words, out))
    try:
        wait_for(job, lambda: any((out / "checkpoints").glob("round-*.h5")), "its first checkpoint")
        victims = ranks_of(job.mark, 1)
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code = wait_for(job, lambda: job.poll() is not None, "the end after a kill")
    finally:
        end(job)
    if not victims or (out / "result.json").exists():
        raise RuntimeError(f"rank 1 was not killed in time (code {code})")
    return run(notes, notes.options.pick(2, 1), "killed", words, "--resume", "auto")


def note_doctor(notes: Notes) -> None:
    """Note the report of `fedmpi doctor` on 2 ranks."""
    words = [sys.executable, "-m", "fedmpi", "doctor", "--folder", str(notes.options.work)]
    done, error = notes.attempt(finish, notes, notes.options.pick(2, 1), words)
    notes.put("machine", doctor=error or done.splitlines()[:40])


def settings(notes: Notes, model: str) -> list[str]:
    """Return the overrides of a small run on the device."""
    shared = [f"device={notes.options.device}", "rounds=3", "seed=2", "train.lr=.05", "train.steps=5",
              f"data.cache={notes.options.work / 'cache'}", "checkpoint.every=1"]
    if model == "mlp":
        return [*shared, "data.clients=9", "method={name: fedmhc, M: 3}", "model={name: mlp, hidden: 16}"]
    return [*shared, f"data={{name: arrays, file: {write_arrays(notes.options.work / 'mnist.npz', 'mnist', 600)}, "
            f"clients: 9, cache: {notes.options.work / 'cache'}}}", "model=cnn4", "method=fedavg"]


def run(notes: Notes, ranks: int, name: str, words: list[str], *more: str) -> dict:
    """Run `fedmpi run` on some ranks; return its result. Raises RuntimeError with the last line that it printed."""
    out = notes.options.work / "runs" / name
    finish(notes, ranks, [*command(name, words, out), *more])
    return json.loads((out / "result.json").read_text())


def command(name: str, words: list[str], out: Path) -> list[str]:
    out.parent.mkdir(exist_ok=True)
    config = out.parent / "empty.yaml"
    config.write_text("{}\n")
    return [sys.executable, "-m", "fedmpi", "run", str(config), *words, "--out", str(out)]


def launcher(ranks: int) -> list[str]:
    """Return the words that start a command on some ranks. Raises RuntimeError if there is no launcher."""
    if ranks == 1:
        return []
    return [find_mpiexec(), "-n", str(ranks)]


@cache
def find_mpiexec() -> str:
    """Return the launcher of the library that mpi4py uses: the one on PATH, or the one beside Python."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = [path for path in (shutil.which("mpiexec"), str(beside) if beside.exists() else None) if path]
    ask = [sys.executable, "-c", "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"]
    for path in found[:-1]:
        said = subprocess.run([path, "-n", "2", *ask], capture_output=True, text=True, timeout=RUN_LIMIT_S).stdout
        # With the launcher of another library each rank would be alone.
        if said.split() == ["2", "2"]:
            return path
    if not found:
        raise RuntimeError("there is no mpiexec, neither on PATH nor beside Python")
    return found[-1]


def launch(notes: Notes, ranks: int, words: list[str]) -> subprocess.Popen:
    """Start a command on some ranks; its output goes to a file, because a pipe may stay open after a kill."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    said = notes.options.work / f"said-{mark}.txt"
    with said.open("w") as file:
        job = subprocess.Popen([*launcher(ranks), *words], stdin=subprocess.DEVNULL, stdout=file,
                               stderr=subprocess.STDOUT, env=os.environ | {"FEDMPI_GPU_DAY_JOB": mark},
                               preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL))
    job.said, job.mark = said, mark
    return job


def finish(notes: Notes, ranks: int, words: list[str], limit_s: float = RUN_LIMIT_S) -> str:
    """Run a command to its end; return its output."""
    job = launch(notes, ranks, words)
    try:
        code = job.wait(max(5., min(limit_s, notes.left() - 1)))
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(words[1:5])} on {ranks} ranks did not end: {tail(job)}") from None
    finally:
        end(job)
    text = job.said.read_text(errors="replace")
    print(text, flush=True)
    if code:
        raise RuntimeError(f"exit code {code}: {tail(job)}")
    return text


def wait_for(job: subprocess.Popen, ready, what: str):
    """Wait until ready(); return the job's exit code, None if it runs. Raises RuntimeError if that does not happen."""
    last = time.monotonic() + RUN_LIMIT_S
    while not ready():
        if job.poll() is not None or time.monotonic() > last:
            raise RuntimeError(f"there was not {what}: {tail(job)}")
        time.sleep(.02)
    return job.poll()


def tail(job: subprocess.Popen) -> str:
    """Return the last line that says what went wrong."""
    lines = [line.strip() for line in job.said.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"rror|fedmpi:|abort", line)]
    return (telling or lines or [""])[-1][:200]


def processes(mark: str) -> dict[int, dict[str, str]]:
    """Return the environments of a job's running processes by id, from /proc."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            text = (path / "environ").read_bytes().decode(errors="replace")
            if f"FEDMPI_GPU_DAY_JOB={mark}" in text:
                found[int(path.name)] = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    return found


def ranks_of(mark: str, rank: int) -> list[int]:
    """Return the process ids of a rank. The launcher's own processes have no such variable."""
    return [pid for pid, environment in processes(mark).items()
            if next((environment[name] for name in RANKS_NAMES if name in environment), "") == str(rank)]


def end(job: subprocess.Popen) -> None:
    """Kill what is left of a job."""
    for pid in processes(job.mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if job.poll() is None:
        job.kill()
        job.wait(10)
