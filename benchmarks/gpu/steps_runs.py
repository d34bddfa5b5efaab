"""Time whole runs of the real command on ranks that share the GPU, and use tools that examine the GPU."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec

from benchmarks.gpu.made import write_arrays
from benchmarks.gpu.notes import Notes
from benchmarks.gpu.steps_facts import run as ask
from benchmarks.gpu.steps_mpi import finish, run

TESTS = ("tests/engines/test_cuda_graphs.py", "tests/engines/test_convolutions.py", "tests/models/test_precision.py")
SANITIZED = """
from benchmarks.gpu.steps_correct import lab
lab("fedavg", "tiny", "cuda", "vmap", sizes=[23] * 6, graphs="on").go(1)
"""
LONGEST = """
from benchmarks.gpu.steps_speed import federation_of, make
lab = make(federation_of("cifar10", 100, 20), "cuda", "cnn4", "float32", "vmap", graphs="off")
lab.train()
"""


def time_runs(notes: Notes) -> None:
    """Note the seconds of runs of cnn4 on random images of CIFAR-10's shape, evaluated every round or at the end."""
    options = notes.options
    rounds = options.pick(10, 2)
    trials = [("vmap", 1, 10), ("vmap", 1, 1), ("loop", 1, 10), ("vmap", 2, 10), ("vmap", 3, 10), ("vmap", 5, 10),
              ("loop", 5, 10)]
    for engine, ranks, every in notes.cases(options.pick(trials, [("loop", 1, 2)])):
        time_run(notes, engine, ranks, every, rounds)


def time_run(notes: Notes, engine: str, ranks: int, every: int, rounds: int, mark: str = "") -> None:
    options = notes.options
    clients, each = options.pick((100, 250), (4, 20))
    file = write_arrays(options.work / "cifar10.npz", "cifar10", clients * each)
    cache = options.work / "cache"
    words = [f"device={options.device}", f"rounds={rounds}", "method=fedavg", "model=cnn4", f"engine={engine}",
             f"data={{name: arrays, file: {file}, clients: {clients}, cache: {cache}, partition: iid}}",
             f"evaluate.every={every}", "checkpoint.every=0"]
    name, begin = f"run-{engine}-{ranks}-{every}{mark}", time.monotonic()
    result, error = notes.attempt(run, notes, ranks, name, words)
    seconds, lines = time.monotonic() - begin, []
    if result:
        lines = [json.loads(line) for line in (options.work / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    last = lines[-1] if lines else {}
    notes.put("runs", ranks=ranks, engine=engine + mark, every=every, seconds=last.get("seconds"),
              train_s=last.get("seconds_train"), judge_s=last.get("seconds_judge"), rounds=rounds, error=error,
              start_s=round(seconds - (last.get("seconds") or 0), 2))


def time_runs_with_mps(notes: Notes) -> None:
    """Note the seconds of runs with NVIDIA's Multi-Process Service, which lets ranks use one GPU at the same time."""
    with mps(notes) as why:
        for ranks in notes.cases(() if why else (3, 5)):
            time_run(notes, "vmap", ranks, 10, notes.options.pick(10, 2), ", MPS")
    if why:
        notes.put("machine", mps=why)


@contextmanager
def mps(notes: Notes):
    """Run the service, with its files in this day's folder; yield the reason if that is not possible, else ""."""
    tool, folder = shutil.which("nvidia-cuda-mps-control"), notes.options.work / "mps"
    if notes.options.device == "cpu" or not tool:
        yield "there is no nvidia-cuda-mps-control" if not tool else "a CPU needs none"
        return
    folder.mkdir(exist_ok=True)
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    done = ask([tool, "-d"])
    try:
        yield "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[:200] or "it did not start"
    finally:
        subprocess.run([tool], input="quit\n", text=True, capture_output=True, timeout=20)


def check_memory(notes: Notes) -> None:
    """Let compute-sanitizer search a round with CUDA graphs for invalid memory accesses."""
    use_tool(notes, "compute-sanitizer", ["--tool", "memcheck", "--print-limit", "5"], SANITIZED, "memcheck")


def profile_kernels(notes: Notes) -> None:
    """Let Nsight Compute measure which share of the GPU's peak rates some kernels of a cohort's steps reach."""
    use_tool(notes, "ncu", ["--clock-control", "none", "--launch-skip", "400", "--launch-count", "12", "--section",
                            "SpeedOfLight"], LONGEST, "ncu")


def use_tool(notes: Notes, tool: str, words: list[str], script: str, name: str) -> None:
    path = shutil.which(tool)
    if notes.options.device == "cpu" or not path:
        notes.put("machine", **{name: "there is no GPU" if path or notes.options.device == "cpu" else
                                f"there is no {tool}"})
        return
    said, error = notes.attempt(finish, notes, 1, [path, *words, sys.executable, "-c", script], notes.left())
    lines = [line for line in (said or "").splitlines() if "Throughput" in line or "ERROR SUMMARY" in line
             or "Duration" in line or line.startswith("  ") and "(" in line]
    notes.put("machine", **{name: error or lines[-60:]})


def run_tests(notes: Notes) -> None:
    """Run the tests of the suite that use a GPU if there is one."""
    if not find_spec("pytest") or not find_spec("hypothesis"):
        notes.put("machine", pytest="pytest or hypothesis is not installed")
        return
    tests = notes.options.pick(TESTS, ("tests/engines/test_cuda_graphs.py::test_every_step_is_taken",))
    words = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", *tests]
    said, error = notes.attempt(finish, notes, 1, words, notes.left())
    lines = (said or "").splitlines()
    notes.put("machine", pytest=error or lines[-1] if lines or error else "it said nothing")
