"""Run other frameworks in the benchmark `cohort`, each in the Python environment in which it is installed."""
from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers.shape import MARK, Shape
from fedmpi.errors import BadInput, FedmpiError

HERE = Path(__file__).parent
# Variables with these prefixes are not passed on to a peer.
LAUNCHERS = ("PMI", "HYDRA", "OMPI", "PMIX", "MPI", "SLURM", "PYTHON")
# Last lines of a failed peer that are shown; torchrun adds about fifty of its own.
WORDS = 80
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Peer:
    """A framework: its distribution, what to install, and whether torchrun starts its processes."""
    package: str
    install: str
    script: str
    torchrun: bool = False


PEERS = {"pfl": Peer("pfl", "'pfl[pytorch]==0.6.*'", "with_pfl.py", torchrun=True),
         "flower": Peer("flwr", "'flwr[simulation]==1.36.0' torch", "with_flower.py")}


def version(name: str, python: str) -> str:
    """Return the version of a peer under a Python. Raises BadInput, with how to install it, if it is missing."""
    peer = PEERS[name]
    ask = f"from importlib.metadata import version; print(version({peer.package!r}))"
    try:
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True, env=environment())
    except OSError as error:
        raise BadInput(f"{name} = {python}: {error.strerror}; it should be the python in which {name} is installed"
                       ) from None
    if done.returncode:
        raise BadInput(f"{name} = {python}: {name} is not installed there; {how(name)}")
    return done.stdout.strip()


def how(name: str) -> str:
    return (f"python3 -m venv {name}-venv && {name}-venv/bin/pip install {PEERS[name].install}, "
            f"then {name}={name}-venv/bin/python")


def timed(name: str, python: str, shape: Shape) -> np.ndarray:
    """Run a peer; return (rounds, 2, 2): wall seconds and CPU seconds of training and of evaluation.

    Raises FedmpiError with the last lines that the peer printed if it ends before all rounds are over."""
    launch = [python]
    if PEERS[name].torchrun and shape.cores > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={shape.cores}"]
    launch += [str(HERE / PEERS[name].script), json.dumps(asdict(shape))]
    stamps, log = [], []
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(
            launch, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment(shape)) as process:
        for line in process.stdout:
            if line.startswith(MARK):
                stamps.append((time.perf_counter(), cpu_seconds(process.pid)))
            log.append(line)
        errors.seek(0)
        log += errors.readlines()
    if process.returncode or len(stamps) != 2 * shape.rounds + 2:
        raise FedmpiError(f"{name} ended with {process.returncode} after {len(stamps) // 2} of {shape.rounds + 1} "
                          f"rounds; its last words:\n{''.join(log[-WORDS:])}")
    # without the round that warms up
    return np.diff(np.array(stamps)[1:], axis=0).reshape(shape.rounds, 2, 2)


def environment(shape: Shape | None = None) -> dict[str, str]:
    """Return the environment variables for a peer."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    device = {"PFL_PYTORCH_DEVICE": shape.device} if shape else {}
    return own | device | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE), "FLWR_TELEMETRY_ENABLED": "0",
                           "RAY_USAGE_STATS_ENABLED": "0"}


def cpu_seconds(root: int) -> float:
    """Return the CPU time of a process, its descendants and their ended children; nan if there is no /proc."""
    spent, children = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        # The process ended meanwhile.
        except OSError:
            continue
        spent[int(entry.parent.name)] = sum(map(int, fields[11:15])) / TICKS
        children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    family = [root]
    for pid in family:
        family += children.get(pid, [])
    return sum(spent[pid] for pid in family) if root in spent else float("nan")
