"""Describe the machine, and measure its ceilings, with which all other figures are compared."""
from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata

import torch

from benchmarks.gpu.clock import measure_kernel
from benchmarks.gpu.notes import Notes
from fedmpi.models import precision

ASKED = ("name", "uuid", "driver_version", "memory.total", "memory.used", "clocks.sm", "clocks.mem", "clocks.max.sm",
         "clocks.max.mem", "power.limit", "temperature.gpu", "ecc.mode.current", "mig.mode.current", "compute_mode",
         "persistence_mode", "pcie.link.gen.current", "pcie.link.width.current")
PACKAGES = ("torch", "triton", "numpy", "h5py", "mpi4py", "mpich", "pydantic", "pydantic-core", "scikit-learn",
            "torchvision", "nvidia-cublas", "nvidia-cudnn-cu13")
# Names of environment variables that are noted, unless they look PRIVATE.
TELLING = re.compile(r"TF32|CUBLAS|CUDNN|CUDA|NVIDIA|TORCH|PYTORCH|OMP|MPI|UCX|MPIR|TRITON")
PRIVATE = re.compile(r"TOKEN|SECRET|KEY|PASSW|CREDENTIAL")
LIMIT_S = 20


def note_machine(notes: Notes) -> None:
    """Note hardware, versions, environment, and PyTorch's precision flags before and after fedmpi sets them."""
    before = smi()
    notes.put("machine", smi=before, packages=versions(), python=sys.version.split()[0], system=platform.platform(),
              cores=len(os.sched_getaffinity(0)), memory_gib=round(memory_gib(), 1), cuda=torch.version.cuda,
              cudnn=torch.backends.cudnn.version(), mpi=mpi_library(),
              tools={name: shutil.which(name) or "" for name in ("nvcc", "ncu", "compute-sanitizer", "mpiexec",
                                                                 "nvidia-cuda-mps-control")},
              environment={name: value for name, value in sorted(os.environ.items())
                           if TELLING.search(name) and not PRIVATE.search(name)})
    found = {"default": flags()}
    for name in ("float32", "tf32", "bf16"):
        precision.set_precision(name)
        found[name] = flags()
    precision.set_precision("float32")
    notes.put("machine", precision=found)
    if notes.options.device == "cuda":
        torch.zeros(1, device="cuda")
        facts = torch.cuda.get_device_properties(0)
        notes.put("machine", gpu=facts.name, capability=f"{facts.major}.{facts.minor}",
                  multiprocessors=facts.multi_processor_count, gpu_memory_gib=round(facts.total_memory / 2**30, 1),
                  l2_mib=round(getattr(facts, "L2_cache_size", 0) / 2**20), smi_with_a_context=smi())


def smi() -> dict[str, str]:
    """Return the fields that nvidia-smi reports; {} without nvidia-smi."""
    found = {}
    if shutil.which("nvidia-smi"):
        # All fields at once; if nvidia-smi does not know one of them, one by one.
        for asked in ([",".join(ASKED)], ASKED):
            found = {}
            for names in asked:
                done = run(["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader"])
                if done.returncode == 0 and done.stdout.strip():
                    values = done.stdout.splitlines()[0].split(", ")
                    found |= dict(zip(names.split(","), values, strict=False))
            if found:
                break
    return found


def run(words: list[str]) -> subprocess.CompletedProcess:
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def mpi_library() -> str:
    """Return the name of the MPI library. Another process loads it, because that starts MPI."""
    done = run([sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())"])
    return " ".join(done.stdout.split())[:120] or (done.stderr.splitlines() or ["?"])[-1]


def memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def flags() -> dict:
    """Return PyTorch's switches for precision and determinism."""
    return {"matmul_tf32": torch.backends.cuda.matmul.allow_tf32, "cudnn_tf32": torch.backends.cudnn.allow_tf32,
            "matmul_precision": torch.get_float32_matmul_precision(),
            "bf16_reduced": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_deterministic": torch.backends.cudnn.deterministic,
            "deterministic": torch.are_deterministic_algorithms_enabled()}


def note_ceilings(notes: Notes) -> None:
    """Time a copy in device memory (bytes read and written), and square products of random numbers."""
    options = notes.options
    # Count of numbers, far more than a cache holds.
    big = options.pick(2 ** 30, 2 ** 22)
    source = torch.rand(big, device=options.device)
    target = torch.empty_like(source)
    spent = measure_kernel(lambda: target.copy_(source), options.device)
    notes.put("ceilings", copy_GBs=round(8 * big / spent.seconds / 1e9, 1))
    for name, side in (("fp32", 8192), ("tf32", 8192), ("bf16", 8192)):
        side = options.pick(side, 256)
        precision.set_precision("tf32" if name == "tf32" else "float32")
        dtype = torch.bfloat16 if name == "bf16" else torch.float32
        a, b = (torch.randn(side, side, device=options.device).to(dtype) for _ in range(2))
        spent = measure_kernel(lambda a=a, b=b: a @ b, options.device, 10)
        notes.put("ceilings", **{f"{name}_TF": round(2 * side ** 3 / spent.seconds / 1e12, 2)})
