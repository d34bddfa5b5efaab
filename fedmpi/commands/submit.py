"""`fedmpi submit`: from a command line to a job script, checked now rather than after hours in the queue."""
from __future__ import annotations

import itertools
import re
import shlex
import sys
from pathlib import Path

from fedmpi.config.schema import load_config
from fedmpi.errors import BadInput
from fedmpi.slurm.deadline import parse_time_limit
from fedmpi.slurm.sbatch import guess_mpi
from fedmpi.slurm.script import JobScript


def build_job(config: str, settings: list[str], array: list[str], options: list[str], **asked) -> JobScript:
    """Return the job that the command line asks for. Raises BadInput: better now than after hours in the queue."""
    runs = expand_array(array)
    asked = {name: value for name, value in asked.items() if value is not None}
    parse_time_limit(asked["time"], "--time")
    threads = {load_run(config, [*settings, *words], i, bool(runs)).threads for i, words in enumerate(runs or [()])}
    asked["command"] = tuple(shlex.split(asked.get("command") or shlex.join([sys.executable, "-m", "fedmpi"])))
    nodes = asked.setdefault("nodes", 1)
    defaults = {"ranks": 2 * nodes, "cpus": max(threads), "mpi": guess_mpi(),
                "name": re.sub(r"[^\w.-]", "_", Path(config).stem)}
    return JobScript(config, tuple(settings), runs, options=tuple(options), **defaults | asked)


def load_run(config: str, words: list[str], number: int, many: bool):
    """Return the configuration of a run; with `many` runs an error says which."""
    try:
        return load_config(config, words)
    except BadInput as error:
        raise BadInput(f"run {number} of the array: {error}" if many else str(error)) from None


def expand_array(specs: list[str]) -> tuple[tuple[str, ...], ...]:
    """Return the settings of each run: of all combinations of `key=a,b,...`, or of each line of a file."""
    grid = []
    for spec in specs:
        key, equals, values = spec.partition("=")
        if not equals:
            grid.append(read_array_file(spec))
        elif set(values) & set("[]{}'\""):
            raise BadInput(f"--array {spec}: lists and mappings cannot be told apart here; write each run's settings "
                           "on a line of a file, and give that: --array FILE")
        else:
            grid.append([(f"{key}={value}",) for value in values.split(",")])
    return tuple(sum(parts, ()) for parts in itertools.product(*grid)) if grid else ()


def read_array_file(path: str) -> list[tuple[str, ...]]:
    """Return the words of each line of a file, as a shell would divide them; # begins a remark."""
    try:
        words = [tuple(shlex.split(line, comments=True)) for line in Path(path).read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise BadInput(f"--array {path}: neither key=value,value nor a file with settings on each line: "
                       f"{error}") from None
    if not any(words):
        raise BadInput(f"--array {path}: the file names no run; write the settings of one on each line")
    return [line for line in words if line]
