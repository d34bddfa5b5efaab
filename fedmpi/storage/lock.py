"""The lock of a run folder, for clusters on which neither file locks nor orderly ends can be relied on.

A lock is a file created with O_EXCL: JSON on its holder, touched every 10 s as a sign of life. The lock of a
dead holder is inherited by whoever locks `LOCK-TOKEN` (TOKEN: the dead holder's) and renames that over it. So
no two heirs remove each other's lock, and an heir that dies on the way can be inherited from in turn.
"""
from __future__ import annotations

import json
import os
import re
import socket
import stat
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

from fedmpi.errors import BadInput, FolderInUse
from fedmpi.json_values import JsonObject
from fedmpi.slurm.job import SlurmJob, has_ended
from fedmpi.storage import run_files

# How a lock says since when it is held; log.txt stamps its lines alike.
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
# Seconds between two signs of life of a holder.
LOCK_BEAT_S = 10.0
# A larger file is not a lock: a lock has some hundred bytes.
MOST_BYTES = 1 << 16
# A holder whose process cannot be looked at (another machine or container) counts as dead after so many seconds without
# a sign of life.
MAX_SILENCE_S = 60.0
# A holder with a sign of life in the last FRESH_S seconds lives for a command that only looks. Slurm is not asked: with
# hundreds of runs, squeue would be called for each.
FRESH_S = 2 * LOCK_BEAT_S
# What is known of when a process started if it runs and cannot be looked at.
RUNNING = "running"


class Lock:
    """The lock of a folder. Raises BadInput when somebody else holds it, OSError when none can be made."""

    def __init__(self, folder: Path):
        self.path, self.me, self.ended = folder / run_files.LOCK, describe_this_process(), threading.Event()
        # says whose lock was inherited and why; None: nobody's
        self.taken_over = take_lock(self.path, self.me)
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self) -> None:
        """Give a sign of life every LOCK_BEAT_S until the lock is released."""
        while not self.ended.wait(LOCK_BEAT_S):
            with suppress(OSError):
                if self.held():
                    os.utime(self.path)

    def held(self) -> bool:
        """Tell whether the lock is still ours: who sleeps for a minute may be taken for dead."""
        return read_holder(self.path).get("token") == self.me["token"]

    def release(self) -> None:
        """Remove the lock, if it is still ours."""
        self.ended.set()
        with suppress(OSError):
            if self.held():
                self.path.unlink()


def is_run_alive(folder: Path) -> bool:
    """Say whether a run is under way in a folder, as far as can be told from here."""
    return describe_dead_holder(folder, asks_always=True) == ""


def describe_dead_holder(folder: Path, asks_always: bool = False) -> str | None:
    """Say who left the lock of a folder behind, and why it counts as dead.

    Args:
        asks_always: ask Slurm about every holder; else only about one that was silent for FRESH_S to MAX_SILENCE_S.

    Returns:
        "" if the holder may live; None if there is no lock, or none that can be read"""
    path = folder / run_files.LOCK
    try:
        if not is_lock(path):
            return None
        holder, me = read_holder(path), describe_this_process()
        # To measure a silence takes a file; a process that can be looked at is not judged by its silence.
        seen = holder.get("processes") == me["processes"] and read_start_mark(holder["pid"]) != RUNNING
        silence = 0. if seen else measure_silence(path)
        why = find_why_dead(holder, me, silence, asks_always or FRESH_S <= silence < MAX_SILENCE_S)
    except OSError:
        return None
    return f"{describe_holder(holder)}: {why}" if why else ""


def is_lock(path: Path) -> bool:
    """Say whether a path is a regular file, as all locks are. Raises OSError if nothing is there."""
    return stat.S_ISREG(os.lstat(path).st_mode)


def take_lock(path: Path, me: JsonObject) -> str | None:
    """Make `path` the lock of `me`; return whose lock was inherited and why, None when there was none."""
    while not create_lock(path, me):
        try:
            if not is_lock(path):
                raise BadInput(f"{path} is not the lock of a run, but a link, a folder, a pipe or a device; remove it, "
                               "or choose another --out")
            holder, silence = read_holder(path), measure_silence(path)
        except FileNotFoundError:
            continue
        why = find_why_dead(holder, me, silence)
        if why is None:
            raise FolderInUse(f"run folder {path.parent} is in use by {describe_holder(holder)}, last sign of life "
                              f"{silence:.0f} s ago; wait for that run, stop it or choose another --out")
        heir = path.with_name(f"{path.name}-{holder.get('token')}")
        take_lock(heir, me)
        if path.exists() and read_holder(path) == holder:
            os.replace(heir, path)
            return f"{describe_holder(holder)} left the folder locked: {why}"
        heir.unlink()
    return None


def create_lock(path: Path, me: JsonObject) -> bool:
    """Create a lock; return False when there is one."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    try:
        with open(descriptor, "w") as file:
            json.dump(me, file)
    except OSError:
        path.unlink()
        raise
    return True


def read_holder(path: Path) -> JsonObject:
    """Return what a lock says of its holder; {} if it is not there, damaged, still being written, or no file."""
    with suppress(FileNotFoundError, ValueError, TypeError, RecursionError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            holder = json.loads(file.read(MOST_BYTES)) if stat.S_ISREG(os.fstat(descriptor).st_mode) else {}
        if is_holder(holder):
            return holder
    return {}


def is_holder(values: object) -> bool:
    """Say whether a lock says all that is looked at, each of its type; the token becomes part of a file's name."""
    if not isinstance(values, dict) or not isinstance(values.get("token"), str):
        return False
    return (bool(re.fullmatch(r"[\w-]{1,64}", values["token"])) and "started" in values
            and isinstance(values.get("pid"), int) and isinstance(values.get("restart"), int)
            and all(isinstance(values.get(key), str | None) for key in ("host", "started", "processes", "job")))


def measure_silence(path: Path) -> float:
    """Return the seconds since a lock's last sign of life, by the clock of its file system; by that of this machine if
    the folder cannot be written."""
    try:
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            now = os.fstat(probe.fileno()).st_mtime
    except OSError:
        now = time.time()
    silence = now - path.stat().st_mtime
    # One from far in the future was given before a clock was set back.
    return max(0., silence) if silence > -MAX_SILENCE_S else -silence


def find_why_dead(holder: JsonObject, me: JsonObject, silence: float, asks: bool = True) -> str | None:
    """Return why a holder counts as dead, None when it may live.

    Args:
        asks: ask Slurm, too, whether the holder's job has ended."""
    if holder.get("processes") == me["processes"]:
        mark = read_start_mark(holder["pid"])
        if mark == holder["started"]:
            return None
        # One that cannot be looked at is judged like one of another machine.
        if mark != RUNNING:
            return "that process is gone"
    if me["job"] and holder.get("job") == me["job"] and holder["restart"] < me["restart"]:
        return "its job was started again"
    same_cluster = me["cluster"] and holder.get("cluster") == me["cluster"]
    if asks and same_cluster and holder.get("job") not in (None, me["job"]) and has_ended(str(holder["job"])):
        return "its job has ended"
    return f"no sign of life for {silence:.0f} s" if silence >= MAX_SILENCE_S else None


def read_begin(folder: Path) -> str:
    """Return since when the lock of a folder is held, in TIME_FORMAT; "" if it does not tell."""
    with suppress(OSError):
        return str(read_holder(folder / run_files.LOCK).get("since", ""))
    return ""


def describe_holder(holder: JsonObject) -> str:
    """Name a holder for a message."""
    if not holder:
        return "an unknown process"
    job = f" (job {holder['job']})" if holder.get("job") else ""
    return f"pid {holder.get('pid')} on {holder.get('host')}{job}"


def describe_this_process() -> JsonObject:
    """Describe this process. Pids compare only where `processes` agree: same boot, same container."""
    host, pid, job = socket.gethostname(), os.getpid(), SlurmJob.from_env()
    space = [host]
    with suppress(OSError):
        space.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        space.append(os.readlink("/proc/self/ns/pid"))
    return {"token": uuid.uuid4().hex, "host": host, "pid": pid, "started": read_start_mark(pid),
            "processes": " ".join(space), "job": job.job_id, "cluster": job.cluster, "restart": job.restarts,
            "since": time.strftime(TIME_FORMAT)}


def read_start_mark(pid: int) -> str | None:
    """Return a mark of when a process started, which betrays a reused pid; None when it does not run, and RUNNING if no
    more can be told."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # There may be no /proc, or one that hides the processes of other users (hidepid).
    except OSError:
        return RUNNING if is_process_running(pid) else None
    return None if state in "ZX" else fields[18]


def is_process_running(pid: int) -> bool:
    """Say whether a process of this number runs, also one of another user."""
    try:
        os.kill(pid, 0)
    # A pid that a file gives may be any number.
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
