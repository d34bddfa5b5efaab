"""Run one benchmark on all ranks, print its table, write its JSON and its picture."""
from __future__ import annotations

import importlib
import inspect
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.plot import plot
from benchmarks.synthetic import SHAPES
from fedmpi.commands import verify
from fedmpi.config.load import parse_yaml
from fedmpi.errors import BAD_INPUT, BadInput, FedmpiError

NAMES = ("overhead", "engines", "collectives", "cohort", "scaling", "clustering", "similarity", "clients", "traffic",
         "exactness", "reading", "training")
ROOT = Path(__file__).resolve().parents[1]
LARGEST = 10 ** 9
PICTURES = (".png", ".svg", ".pdf")
# Whole numbers must be 1 or more, except these. `largest` starts at 100, the fewest clients that are measured.
SMALLEST = {"mini_batch": 0, "largest": 100}


def run_benchmark(name: str, settings: list[str], json_path: str | None, picture_path: str | None) -> int:
    """Measure and print; return the exit code: 0, or 2 for bad input. Any other failure ends all ranks."""
    from fedmpi.comm.launcher import reports_refusal
    from fedmpi.comm.mpi_world import open_world
    try:
        world = open_world()
        measure, chosen = find_benchmark(name, settings)
        refuse_outputs(json_path, picture_path)
        found = measure(world, **chosen)
    except BadInput as error:
        # Every rank raises this error, so only one prints it.
        if reports_refusal():
            print(f"benchmarks: {error}", file=sys.stderr)
        return BAD_INPUT
    except FedmpiError as error:
        # Perhaps only this rank raises this error, so it ends the others too.
        world.fail(f"benchmarks: {error}", error.code)
    if world.rank == 0:
        found |= {"machine": describe_machine(world.library)}
        print(format_table(found))
        if json_path:
            with open(json_path, "w") as file:
                json.dump(found, file, indent=1)
        if picture_path:
            plot(found, picture_path)
    world.close()
    return 0


def refuse_outputs(*paths: str | None) -> None:
    """Raise BadInput before the measurement for files that cannot be written."""
    for path in filter(None, paths):
        if not Path(path).parent.is_dir() or Path(path).is_dir():
            raise BadInput(f"{path}: cannot be written; give the name of a file in a folder that is there")
    picture = Path(paths[-1] or "x.png").suffix
    if picture not in PICTURES:
        raise BadInput(f"--plot {paths[-1]}: the name must end with {', '.join(PICTURES)}")


def find_benchmark(name: str, settings: list[str]) -> tuple[Callable[..., dict | None], dict]:
    """Return a benchmark's `measure` function and its checked keyword arguments. Raises BadInput."""
    if name not in NAMES:
        raise BadInput(f"benchmark {name!r} is not known; the benchmarks are {', '.join(NAMES)}")
    measure = importlib.import_module(f"benchmarks.{name}").measure
    # The first parameter is the world.
    defaults = {p.name: p.default for p in list(inspect.signature(measure).parameters.values())[1:]}
    chosen = {}
    for text in settings:
        key, _, value = text.partition("=")
        if key not in defaults:
            raise BadInput(f"{key!r} is not a setting of the benchmark {name}; its settings are "
                           + ", ".join(f"{k}={v}" for k, v in defaults.items()))
        try:
            chosen[key] = parse_yaml(value)
        except ValueError:
            raise BadInput(f"{key} = {value}: the value is not valid YAML") from None
        if not isinstance(chosen[key], type(defaults[key])):
            kind = type(defaults[key]).__name__
            raise BadInput(f"{key} = {value}: should be of type {kind}, as the default {defaults[key]!r} is")
        refuse_value(key, chosen[key])
    values = defaults | chosen
    counts = [values[key] for key in ("few", "many", "clients") if key in values]
    if "participants" in values and values["participants"] > min(counts):
        raise BadInput(f"participants = {values['participants']}: there are {min(counts)} clients; choose as many or "
                       "fewer")
    return measure, chosen


def refuse_value(key: str, value: object) -> None:
    """Raise BadInput for a number that is out of bounds, and for samples of an unknown shape."""
    least = SMALLEST.get(key, 1)
    if type(value) is int and not least <= value <= LARGEST:
        raise BadInput(f"{key} = {value}: should be from {least} to {LARGEST:,}")
    if key == "shape" and value not in SHAPES:
        raise BadInput(f"shape = {value}: is not known; there are {', '.join(SHAPES)}")


def format_table(found: dict) -> str:
    """Format a benchmark's figures as text."""
    rows = found["rows"]
    facts = {key: value for key, value in found.items() if key not in ("rows", "ratio", "notes", "machine")}
    lines = [", ".join(f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}" for k, v in facts.items()),
             "  ".join(f"{k:>22s}" for k in rows[0])]
    lines += ["  ".join(f"{v:22.5g}" if isinstance(v, float) else f"{v!s:>22s}" for v in row.values()) for row in rows]
    several = [row["ratio"] for row in rows if "ratio" in row and "who" not in row]
    how = f"ratio (median) {found['ratio']:.4g}, from {min(several):.4g} to {max(several):.4g}" if several else (
        f"ratio {found['ratio']:.4g}")
    return "\n".join([*lines, how, *found.get("notes", [])])


def describe_machine(library: str) -> dict:
    """Return on what machine, with which software and when figures were measured."""
    model = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return verify.describe_environment() | {
        "processor": model[1] if model else platform.machine(), "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0], "mpi": library, "python": platform.python_version(), "commit": find_commit(),
        "when": time.strftime("%Y-%m-%d %H:%M:%S %z")}


def find_commit() -> str:
    """Return the commit of the checkout; without git the value of FEDMPI_COMMIT."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    except OSError:
        done = None
    return done.stdout.strip() if done and done.returncode == 0 else os.environ.get("FEDMPI_COMMIT", "")
