"""The steps of each part of the day, the most important first: the last ones are skipped when time is short.

Limits suit a machine with a GPU like the H200 and 16 cores. Correctness and figures should take 18 minutes together, so
a step that uses its whole limit takes time from the last ones."""
from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.day import Step
from fedmpi.errors import BadInput

HERE = "benchmarks.gpu.steps_"
# A process that has started CUDA cannot be forked for the steps, so another one looks for a GPU.
FINDS_GPU = "import sys, torch; sys.exit(not torch.cuda.is_available())"


def make(name: str, call: str, limit_s: float, *words: str, **more) -> Step:
    return Step(name, HERE + call, limit_s, words=words, **more)


CORRECTNESS = [
    make("facts", "facts:note_machine", 60),
    make("ceilings", "facts:note_ceilings", 30),
    make("methods-loop", "correct:compare_loop", 75, silent_s=30),
    make("methods-vmap", "correct:compare_vmap", 75, silent_s=30),
    make("methods-graphs", "correct:compare_graphs", 75, silent_s=30),
    make("kill-resume", "mpi:kill_and_resume", 75),
    make("mpi-digests", "mpi:note_digests", 150, silent_s=90),
    make("models", "correct:compare_models", 90, silent_s=40),
    make("capture-sync", "capture:survive_sync", 30),
    make("capture-memory", "capture:survive_lack_of_memory", 30),
    make("capture-full", "capture:fill_card", 45),
    make("capture-price", "capture:price_recording", 40),
    make("bits", "bits:note_digests", 60, silent_s=30),
    make("bits-again", "bits:note_digests_again", 60, silent_s=30),
    make("bits-kernels", "bits:note_kernels", 40, silent_s=30),
    make("capture-recorded", "capture:note_recorded", 60, silent_s=30),
    make("doubles", "correct:compare_with_doubles", 30),
    make("doctor", "mpi:note_doctor", 30),
    make("pytest", "runs:run_tests", 70, silent_s=75),
    make("memcheck", "runs:check_memory", 75, silent_s=80)]

FIGURES = [
    make("speed-cnn4-mnist", "speed:time_engines", 75, "cnn4", "mnist", silent_s=30),
    make("speed-cnn4-cifar10", "speed:time_engines", 75, "cnn4", "cifar10", silent_s=30),
    make("round", "round:profile_round", 45),
    make("runs", "runs:time_runs", 130, silent_s=95),
    make("candidates", "layers:try_candidates", 60, silent_s=30),
    make("layers", "layers:time_layers", 45, silent_s=30),
    make("sums", "round:time_sums", 40),
    make("collectives", "round:time_collectives", 40),
    make("speed-mlp", "speed:time_engines", 40, "mlp", "digits", silent_s=30),
    make("speed-lenet5", "speed:time_engines", 50, "lenet5", "mnist", silent_s=30),
    make("speed-fasttext", "speed:time_engines", 45, "fasttext", "texts", silent_s=30),
    make("speed-resnet18", "speed:time_engines", 60, "resnet18", "cifar10", silent_s=45),
    make("runs-mps", "runs:time_runs_with_mps", 60)]

AFTER = [
    make("facts", "facts:note_machine", 60),
    make("methods-graphs", "correct:compare_graphs", 75, silent_s=30),
    make("after-speed-cnn4-mnist", "speed:time_engines", 75, "cnn4", "mnist", silent_s=30),
    make("after-speed-cnn4-cifar10", "speed:time_engines", 75, "cnn4", "cifar10", silent_s=30),
    make("after-runs", "runs:time_runs", 110, silent_s=95),
    make("after-speed-mlp", "speed:time_engines", 40, "mlp", "digits", silent_s=30),
    make("ncu", "runs:profile_kernels", 75, silent_s=80)]

PARTS = {"correctness": CORRECTNESS, "figures": FIGURES, "after": AFTER}


def chosen(part: str, only: str) -> list[Step]:
    """Return the steps of a part, or those of them that are named. Raises BadInput."""
    steps = {step.name: step for step in PARTS[part]}
    names = [name for name in only.split(",") if name]
    if unknown := [name for name in names if name not in steps]:
        raise BadInput(f"--only {','.join(unknown)}: not a step of {part}; its steps are {', '.join(steps)}")
    return [step for name, step in steps.items() if not names or name in names]


def preload(device: str) -> None:
    """Import what all steps need, once, without starting CUDA. Raises BadInput if there is no CUDA, or no GPU."""
    import torch
    for path in sorted(Path(__file__).parent.glob("steps_*.py")):
        importlib.import_module(f"benchmarks.gpu.{path.stem}")
    if device == "cuda" and not torch.backends.cuda.is_built():
        raise BadInput("--device cuda: this PyTorch was built without CUDA; install one with it, or try --device cpu")
    if device == "cuda" and subprocess.run([sys.executable, "-c", FINDS_GPU]).returncode:
        raise BadInput("--device cuda: PyTorch finds no GPU on this machine; see whether nvidia-smi does, or try "
                       "--device cpu")


def summary(step: Step) -> str:
    """Return the first paragraph of the docstring of a step's function."""
    module, _, function = step.call.partition(":")
    said = getattr(importlib.import_module(module), function).__doc__ or "the same in another way"
    return " ".join(said.split("\n\n")[0].split())
