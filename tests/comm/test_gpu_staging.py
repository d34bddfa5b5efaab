"""How numbers on a GPU reach MPI: which way is taken, and what is refused. test_ranks.py tests on tensors of the CPU
that both ways carry the same numbers."""
from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedmpi.comm.gpu_staging import (
    allocate_bytes,
    is_cuda_aware,
    refuse_cuda_aware,
    stage_for_mpi,
    wait_for_gpu,
    wants_gpu_direct,
)
from fedmpi.errors import BadInput
from tests import forked

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def world(aware, size=3):
    return SimpleNamespace(size=size, cuda_aware=aware, library="Some MPI 1.0", cuda_aware_by_rank=size * [aware])


@pytest.mark.parametrize("asked, aware, expected", [
    ("auto", True, True), ("auto", False, False), ("auto", None, False),
    ("on", True, True), ("on", None, True), ("off", True, False)])
def test_the_way(asked, aware, expected):
    assert wants_gpu_direct(asked, world(aware), GPU) is expected
    assert not wants_gpu_direct(asked, world(aware), CPU) and not wants_gpu_direct(asked, world(aware, size=1), GPU)


def test_on_is_refused_where_the_library_says_no():
    with pytest.raises(BadInput, match=r"^comm.cuda_aware = on, but .* takes no GPU memory \(Some MPI 1.0"):
        refuse_cuda_aware("on", world(False))


@pytest.mark.parametrize("asked, aware, size", [("on", True, 3), ("on", None, 3), ("on", False, 1), ("auto", False, 3)])
def test_nothing_else_is_refused(asked, aware, size):
    refuse_cuda_aware(asked, world(aware, size))


@pytest.mark.parametrize("aware", [True, None])
def test_a_server_without_a_gpu_does_not_speak_for_the_workers(aware):
    """On its node a library that was built for CUDA says that it takes no GPU memory."""
    there = world(False)
    there.cuda_aware_by_rank = [False, False, aware]
    refuse_cuda_aware("on", there)


def test_a_library_without_an_answer():
    assert is_cuda_aware(SimpleNamespace(__file__=torch._C.__file__)) is None
    assert is_cuda_aware(SimpleNamespace(__file__="/nowhere/MPI.so")) is None
    assert is_cuda_aware(SimpleNamespace()) is None


def ask_the_library():
    """Print the answer of the real MPI library; for a fork of this process."""
    sys.modules.pop("mpi4py")
    from mpi4py import MPI
    print(is_cuda_aware(MPI))


@pytest.mark.slow("ranks under a real launcher")
def test_the_real_library_is_asked_and_a_run_heeds_it(bench, warm):
    aware = forked.call(1, ask_the_library).stdout.strip()
    assert aware in ("True", "False", "None")
    done = bench.mpirun(2, "aware", "comm.cuda_aware=on", "rounds=1", python=warm)
    assert done.returncode == (2 if aware == "False" else 0) and "Traceback" not in done.stderr
    if aware == "False":
        # Open MPI's mpirun adds lines of its own.
        (line,) = [line for line in done.stderr.splitlines() if "fedmpi" in line]
        assert line.startswith("fedmpi: comm.cuda_aware = on, but the MPI library takes no GPU memory")
        assert not bench.out("aware").exists()


def test_on_a_cpu_sums_are_numpys_without_a_copy():
    total = torch.arange(3)
    assert np.shares_memory(stage_for_mpi(total, False), total.numpy()) and stage_for_mpi(total, True) is total
    assert isinstance(allocate_bytes(8, CPU, False), np.ndarray)
    assert isinstance(allocate_bytes(8, CPU, True), torch.Tensor)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_sums_are_staged_in_pinned_memory():
    staged = stage_for_mpi(torch.arange(3, device=GPU), False)
    assert staged.tolist() == [0, 1, 2] and torch.from_numpy(staged).is_pinned()
    assert torch.from_numpy(allocate_bytes(8, GPU, False)).is_pinned() and allocate_bytes(8, GPU, True).is_cuda


def test_the_librarys_answer_is_taken(monkeypatch):
    for answer, aware in ((0, False), (1, True)):
        asked = []
        library = SimpleNamespace(MPIX_Query_cuda_support=lambda answer=answer: answer)
        monkeypatch.setattr("ctypes.CDLL", lambda path, library=library, asked=asked: asked.append(path) or library)
        assert is_cuda_aware(SimpleNamespace(__file__="/lib/MPI.so")) is aware and asked == ["/lib/MPI.so"]


def test_landing_has_room_for_every_byte():
    assert allocate_bytes(9, CPU, False).shape == (9,) and allocate_bytes(9, CPU, False).dtype == np.uint8
    assert allocate_bytes(9, CPU, True).shape == (9,) and allocate_bytes(9, CPU, True).dtype == torch.uint8


def test_mpi_waits_for_a_gpu_and_for_nothing_else(monkeypatch):
    waited = []
    stream = SimpleNamespace(synchronize=lambda: waited.append("synchronized"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: waited.append(device) or stream)
    wait_for_gpu(np.zeros(2))
    wait_for_gpu(torch.zeros(2))
    assert not waited
    wait_for_gpu(SimpleNamespace(is_cuda=True, device=GPU))
    assert waited == [GPU, "synchronized"]
