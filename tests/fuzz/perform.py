"""Perform the commands of a case in forks of this process, or in new processes, with limits of time and memory."""
from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests import forked, launch

# CPU seconds of a process after which it is asked to end, and further ones after which it hangs. The longest command,
# `report`, takes three.
SOFT_CPU_S, HARD_CPU_S = 12, 12
# A process hangs, too, if it uses no CPU for so long, or has not ended after so long.
IDLE_S, WALL_S = 15, 150
# Memory beyond what this process has mapped, and that of the machine which the forks see.
MEMORY_BYTES, MACHINE_BYTES = 3 << 30, 1 << 30
FILE_BYTES = 64 << 20
LOOK_S = .005
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Done:
    """How a command ended. `end` is "", or why it was ended: "asked" after SOFT_CPU_S, "hangs", "waits"."""
    code: int
    out: str
    error: str
    end: str = ""
    # processes that it left behind
    left: int = 0
    cpu: float = 0.


def environment(folder: Path, more: dict[str, str]) -> dict[str, str]:
    """Return the environment of a command. No proxy answers, so that downloads fail at once."""
    nowhere = "http://127.0.0.1:9"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PYTEST_", "FEDMPI_", "PMI"))}
    return kept | {
        "HOME": str(folder), "TMPDIR": str(folder / "tmp"), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1", "PYTHONPATH": str(launch.ROOT), "http_proxy": nowhere, "https_proxy": nowhere,
        "COLUMNS": "120", "PYTHONDONTWRITEBYTECODE": "1"} | more


def limit(ranks: int = 1) -> None:
    """Limit the memory and the files of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    mapped = pages * os.sysconf("SC_PAGE_SIZE")
    # A new process maps the libraries only later.
    resource.setrlimit(resource.RLIMIT_AS, (max(mapped, 6 << 30) + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def perform(words: list[str], folder: Path, ranks: int, more: dict[str, str], real: bool) -> Done:
    """Run `fedmpi WORDS` in a folder to its end."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        paths = [Path(place, name) for name in ("out", "error")]
        for path in paths:
            path.touch()
        begin = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = start_processes if real else start_forks
        pids = start(words, folder, ranks, environment(folder, more), paths)
        code, end = wait(pids, Path(place) / "gone", WALL_S if real else IDLE_S)
        left = sum(end_group(pid) for pid in pids)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        out, error = (path.read_bytes().decode(errors="surrogateescape") for path in paths)
    cpu = used.ru_utime + used.ru_stime - begin.ru_utime - begin.ru_stime
    return Done(code, out, error, end, 0 if end else left, cpu)


def start_forks(words: list[str], folder: Path, ranks: int, env: dict[str, str], paths: list[Path]) -> list[int]:
    """Start the command in forks of this process, which has loaded what it needs; return their numbers."""
    def command(said_by_launcher):
        limit()
        # fedmpi refuses what is larger than the machine, so this machine is made smaller than the limit.
        sysconf, page = os.sysconf, os.sysconf("SC_PAGE_SIZE")
        os.sysconf = lambda name: MACHINE_BYTES // page if name == "SC_PHYS_PAGES" else sysconf(name)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env | said_by_launcher)
        tempfile.tempdir = None
        # PYTHONDONTWRITEBYTECODE has this effect in a new Python.
        sys.dont_write_bytecode = True
        sys.argv = ["fedmpi", *words]
        # A new Python encodes its output so.
        coding = env.get("PYTHONIOENCODING", "utf-8")
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False, encoding=coding)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, encoding=coding, errors="backslashreplace")
        from fedmpi.__main__ import main
        main()
    forked.load()
    return forked.start(ranks, command, paths, paths[0].with_name("gone"))


def start_processes(words: list[str], folder: Path, ranks: int, env: dict[str, str], paths: list[Path]) -> list[int]:
    """Start the command in a new Python, or under mpiexec; return the number of the process."""
    command = launch.command(ranks, "-m", "fedmpi", *words)
    with open(paths[0], "ab") as out, open(paths[1], "ab") as error:
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=error,
                                   start_new_session=True, preexec_fn=limit)
    # `wait` asks the system itself.
    process.returncode = 0
    return [process.pid]


def wait(pids: list[int], gone: Path, idle_s: float) -> tuple[int, str]:
    """Wait for all processes; return the code of the job and why it was ended, if it was (see Done).

    A process that uses no CPU for `idle_s` waits for something; those that it has started do not count."""
    living, codes, begin, end = set(pids), [], time.monotonic(), ""
    used, seen, asked = 0., begin, 0.
    failed_at = None
    while living:
        for pid in list(living):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                living.remove(pid)
                codes.append(os.waitstatus_to_exitcode(status))
                failed_at = failed_at or (time.monotonic() if codes[-1] else None)
        now, cpu = time.monotonic(), sum(cpu_of(pid) for pid in living)
        if cpu > used + TICK_S:
            used, seen = cpu, now
        # As a launcher does, end the others if one has aborted the job, or was killed.
        lost = failed_at and (gone.exists() or any(code < 0 for code in codes))
        if not end and living and cpu > SOFT_CPU_S * len(pids):
            end, asked = "asked", cpu
            for pid in living:
                os.kill(pid, signal.SIGTERM)
        elif living and (now > seen + idle_s or now > begin + WALL_S or asked and cpu > asked + HARD_CPU_S):
            end, lost = "waits" if now > seen + idle_s else "hangs", True
        if lost:
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        time.sleep(LOOK_S)
    return next((code for code in codes if code > 0), next((code for code in codes if code), 0)), end


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process and of those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.
    return sum(map(int, fields[11:15])) * TICK_S


def end_group(pid: int) -> int:
    """End the remaining processes in the group of one that has ended; return 1 if there were any."""
    for _ in range(20):
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return 0
        # Processes that it has started may be ending just now.
        time.sleep(.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return 1
