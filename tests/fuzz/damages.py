"""Damages of every file that a run leaves or needs, and the commands that then read it."""
from __future__ import annotations

import json
import os
import random
import shutil
import stat
from pathlib import Path

import yaml

from tests.fuzz.case import Case
from tests.fuzz.configurations import write
from tests.fuzz.data_files import damage
from tests.fuzz.reference import ROUNDS, Reference
from tests.fuzz.values import hostile

RESUME = ["run", "c.yaml", "--out", "run", "--resume", "auto", f"rounds={ROUNDS}"]
FRESH = ["run", "c.yaml", "--out", "new"]
EXPORT = ["export", "run", "new.safetensors", "--client", "1"]
COMPARE, SUMMARY, PLAN, REPORT = ["compare", "run", "other"], ["summary", "."], ["plan", "c.yaml"], ["report", "run"]
BOARD, VERIFY, DATA = ["tensorboard", "run"], ["verify", "run"], ["data", "c.yaml"]
SWEEP = ["sweep", "job.yaml", "--out", "jobs", "--dry-run", "--rate", "9"]
# Kind of file -> the commands that read it, repeated by their frequency, and its place. `report` takes three CPU
# seconds, and is rare.
TARGETS = {
    "checkpoint": ([RESUME, RESUME, EXPORT], "run/checkpoints/round-000002.h5"),
    "all checkpoints": ([RESUME, EXPORT], "run/checkpoints"),
    "federation": ([RESUME, FRESH, FRESH, PLAN, DATA], "cache/*.h5"),
    "history": ([RESUME] * 9 + [REPORT], "run/history.h5"),
    "result": ([COMPARE, SUMMARY, BOARD, VERIFY, SWEEP, RESUME] * 2 + [REPORT], "run/result.json"),
    "metrics": ([COMPARE, SUMMARY, BOARD, VERIFY, RESUME] * 2 + [REPORT], "run/metrics.jsonl"),
    "config": ([COMPARE, BOARD, VERIFY, EXPORT, RESUME] * 2 + [REPORT], "run/config.yaml"),
    "sweep's run": ([SWEEP] * 9 + [["report", "job.yaml", "--out", "jobs"]], "jobs/ditto/one/seed-0/*.*"),
    "lock": ([RESUME, RESUME, RESUME, ["run", "c.yaml", "--out", "run"], SUMMARY], "run/lock"),
    "log": ([RESUME], "run/log.txt"), "job log": ([SUMMARY], "run.txt"),
    "configuration": ([FRESH, RESUME, PLAN], "c.yaml"), "job": ([SWEEP] * 9 + [["report", "job.yaml"]], "job.yaml"),
    "data": ([FRESH, DATA], "few.npz")}
# The lock of a process that was killed on another machine.
LOCK = {"token": "a" * 32, "host": "nowhere", "pid": 1, "started": "1", "processes": "other", "job": None,
        "cluster": None, "restart": 0}


def build(draw: random.Random, folder: Path, reference: Reference) -> Case:
    """Copy two runs into the folder, damage a file; return the case of a command that reads it."""
    for name in ("run", "other", "cache"):
        shutil.copytree(reference.folder / name, folder / name)
    for name in ("c.yaml", "job.yaml"):
        shutil.copy(reference.folder / name, folder / name)
    shutil.copytree(folder / "run", folder / "jobs" / "ditto" / "one" / "seed-0")
    (folder / "run.txt").write_text("job 7: start 1 on host: c.yaml rounds=2\nround 1\njob 7: ended with code 0\n")
    (folder / "run" / "lock").write_text(json.dumps(LOCK))
    os.utime(folder / "run" / "lock", (1e9, 1e9))
    target = draw.choice([*TARGETS, "checkpoint", "federation", "history", "history", "federation", "checkpoint",
                          "lock"])
    commands, pattern = TARGETS[target]
    command = list(draw.choice(commands))
    path = draw.choice(sorted(folder.glob(pattern)))
    whole = path.read_bytes() if path.is_file() else b""
    how = ", ".join(spoil(draw, p, folder) for p in (sorted(path.glob("*.h5")) if path.is_dir() else [path]))
    # Otherwise the holder of the lock may be alive.
    if target == "lock" and path.is_file() and not path.is_symlink() and draw.random() < .8:
        os.utime(path, (1e9, 1e9))
    changed = path.is_dir() or not path.is_file() or path.read_bytes() != whole
    ranks = 2 if command[0] == "run" and draw.random() < .08 else 1
    return Case(f"{target}: {how[:60]}, {command[0]}", [command], ranks, promise=promise(target, command, changed),
                outputs=("run", "cache", "jobs"))


def promise(target: str, command: list[str], changed: bool) -> str:
    """Return what must be equal if the command accepts a file; a file with a checksum must give its former values."""
    if target in ("configuration", "config", "data"):
        return ""
    if command[0] == "run":
        return "history" if target == "history" else "digest"
    return "export" if command[0] == "export" and target == "checkpoint" else ""


def spoil(draw: random.Random, path: Path, folder: Path) -> str:
    """Damage a file, or put something else in its place; return what was done."""
    how = draw.random()
    if how < .5 or not path.exists():
        return ", ".join(damage(draw, path) for _ in range(draw.choice([1, 1, 1, 3])) if path.stat().st_size > 16)
    if how < .72 and path.suffix in (".json", ".jsonl", ".yaml", "", ".txt"):
        return spoil_values(draw, path)
    if how < .8:
        size = path.stat().st_size
        path.write_bytes(draw.choice([b"", b"\0" * size, b"\xff" * size, path.read_bytes() * 2, b"5\n", b"{}\n", b"[]",
                                      b"\n",
                                      b"\x1b[31m" + path.read_bytes(), b"[" * 100000]))
        return "other bytes"
    return replace(draw, path, folder)


def spoil_values(draw: random.Random, path: Path) -> str:
    """Change a value in JSON or YAML."""
    text = path.read_text()
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    at = draw.randrange(max(1, len(lines)))
    try:
        values = yaml.safe_load(lines[at])
    except yaml.YAMLError:
        # It is a log.
        values = None
    if not isinstance(values, dict):
        return "nothing"
    inner = values
    while True:
        key = draw.choice(list(inner))
        if not isinstance(inner[key], dict) or not inner[key] or draw.random() < .3:
            break
        inner = inner[key]
    new = hostile(draw)
    if draw.random() < .2:
        del inner[key]
    else:
        inner[key] = new
    lines[at] = write(values) if path.suffix == ".yaml" else json.dumps(values)
    path.write_text("\n".join(lines) + "\n", errors="replace")
    return f"{key} = {new!r:.40}"


def replace(draw: random.Random, path: Path, folder: Path) -> str:
    """Put something that is not a file, or another file, in the place of a file."""
    how = draw.choice(["folder", "full folder", "pipe", "device", "link to nothing", "link to itself",
                       "link to another", "other run's",
                       "socket", "nothing", "link to device", "another kind"])
    there = folder / "other" / path.relative_to(folder / "run") if path.is_relative_to(folder / "run") else None
    if how == "other run's" and there and there.is_file():
        shutil.copy(there, path)
        return how
    path.unlink()
    if how.endswith("folder"):
        path.mkdir()
        if how == "full folder":
            (path / "user.txt").write_text("a file of the user\n")
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "device":
        make_device(path, draw.choice([3, 5, 7]))
    elif how == "socket":
        os.mknod(path, 0o600 | stat.S_IFSOCK)
    elif how == "link to another":
        shutil.copy(folder / "canary.txt", folder / "linked.txt")
        path.symlink_to(folder / "linked.txt")
    elif how == "another kind":
        shutil.copy(folder / ("canary.txt" if path.name == "few.npz" else "few.npz"), path)
    elif how.startswith("link"):
        path.symlink_to({"link to nothing": "not there", "link to itself": path.name}.get(how, "/dev/full"))
    return how


def make_device(path: Path, minor: int) -> None:
    """Make a copy of /dev/null (3), /dev/zero (5) or /dev/full (7), or a link to one if that is not permitted."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
    except PermissionError:
        path.symlink_to({3: "/dev/null", 5: "/dev/zero", 7: "/dev/full"}[minor])
