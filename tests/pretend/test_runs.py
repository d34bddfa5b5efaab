"""Runs of `fedmpi run` on the simulated GPU: several ranks, what is stored and printed, and what a restart keeps."""
from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi import session as run_module
from fedmpi.clients.placement import Pace
from fedmpi.comm import gpu_probe
from fedmpi.comm.gpu_staging import allocate_bytes, stage_for_mpi
from fedmpi.commands import doctor
from fedmpi.engines import convolutions, gpu_card
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.preparation import depends_on_neighbours
from fedmpi.server.rounds import Run
from fedmpi.storage import checkpoint
from tests import forked, sockets
from tests.comm.together import together
from tests.pretend import GPU, pretend
from tests.pretend.marks import CARD, lies
from tests.pretend.modes import Kernels, unseen
from tests.runs import run_alone

REAL = torch.Tensor.numpy
TINY = {"rounds": 2, "seed": 2, "method": {"name": "fedmhc", "M": 2}, "model": {"name": "mlp", "hidden": 8},
        "device": "cuda", "train": {"lr": .05, "participation": .7, "steps": 4}, "checkpoint": {"every": 1}}


@pytest.fixture(scope="module")
def place(tmp_path_factory, cache):
    """A folder with configurations of a tiny federation."""
    folder = tmp_path_factory.mktemp("gpu")
    data = {"data": {"clients": 5, "cache": str(cache), "partition": {"name": "dirichlet", "beta": .3}}}
    (folder / "c.yaml").write_text(json.dumps(TINY | data))
    return folder


def seen_by(buffer):
    """Do as sockets.flat, for an MPI library that reads and writes GPU memory."""
    if isinstance(buffer, np.ndarray):
        return buffer.reshape(-1).view(np.uint8)
    with unseen():
        return REAL(buffer.detach()).reshape(-1).view(np.uint8)


def wrong(buffer):
    """Do as `seen_by`, for a library that sends something else in place of GPU memory."""
    found = seen_by(buffer)
    return found if isinstance(buffer, np.ndarray) or lies(buffer) != CARD else found * 0


def run(place, out: str, ranks: int, *words, flat=None):
    """Run on some forked ranks; return the job, and for each rank the calls that needed a CUDA context."""
    def as_command():
        from fedmpi.cli import app
        with pretend() as books:
            if flat:
                sockets.flat = flat
            try:
                app(["run", str(place / "c.yaml"), *words, "--out", str(place / out)])
            finally:
                from mpi4py import MPI
                rank = MPI.COMM_WORLD.rank
                kinds = {kind: books.count(kind) for kind in ("unpinned", "atomic")}
                (place / f"{out}-{rank}.json").write_text(json.dumps({"context": books.context} | kinds))
    done = forked.call(ranks, as_command, cwd=place)
    told = [place / f"{out}-{rank}.json" for rank in range(ranks)]
    return done, [json.loads(path.read_text()) for path in told if path.exists()]


def result(place, out) -> dict:
    return json.loads((place / out / "result.json").read_text())


@pytest.mark.slow("a job of forked ranks, which poll while they wait")
def test_any_number_of_workers_gives_the_same_bits_and_the_server_needs_no_gpu(place, monkeypatch):
    """The engine is loop; in the job of three ranks MPI takes GPU memory. The server has no CUDA context."""
    done, (server, *workers) = run(place, "three", 3, "engine=loop", "comm.cuda_aware=on", flat=seen_by)
    assert done.returncode == 0, done.stderr
    assert not server["context"] and all(worker["context"] for worker in workers)
    assert not any(worker["unpinned"] or worker["atomic"] for worker in workers)
    assert "ranks 1-2 share one GPU" in done.stdout
    found = result(place, "three")
    assert len(found["gpus"]) == 1 and found["gpus"][0].startswith("Pretended, driver unknown, torch ")
    # These flags would be set for the whole process, which runs further tests.
    monkeypatch.setattr(gpu_card, "use_deterministic_kernels", lambda: None)
    with pretend():
        assert run_alone(str(place / "c.yaml"), ["engine=loop"], str(place / "one")) == 0
    assert result(place, "one")["digest"] == found["digest"]


def test_what_goes_by_way_of_the_host_lies_in_pinned_memory():
    with pretend() as books:
        total = torch.arange(3, device=GPU)
        assert stage_for_mpi(total, True) is total and stage_for_mpi(total, False).tolist() == [0, 1, 2]
        assert allocate_bytes(8, GPU, True).is_cuda and isinstance(allocate_bytes(8, GPU, False), np.ndarray)
        assert books.copies == 1 and not books.count("unpinned")


@pytest.mark.parametrize("flat, expected", [(seen_by, ""), (wrong, "came back as another"),
                                            (None, "MPI cannot send GPU memory (can't convert cuda:0")])
def test_a_megabyte_shows_whether_mpi_takes_gpu_memory(monkeypatch, flat, expected):
    """It is sent between the ranks themselves; those where it fails use host memory, the others do not."""
    if flat:
        monkeypatch.setattr(sockets, "flat", flat)
    with pretend() as books:
        def act(world):
            # the server's node has no GPU, so there MPI says that it takes no memory of one
            world.cuda_aware = world.rank > 0
            with Kernels(books):
                return gpu_probe.probe_gpu_memory("auto", world, GPU, wanted=world.rank > 0)
        (server, why), *workers = together(3, act)
    assert (server, why) == (False, "")
    assert all(straight == (not expected) and expected in said and bool(said) == bool(expected)
               for straight, said in workers)


@pytest.mark.parametrize("flat, problem", [
    (seen_by, ""),
    (wrong, "rank 1: a megabyte of GPU memory that was sent through MPI came back as another; rank 2: a")])
def test_the_doctor_sends_gpu_memory_through_mpi_before_a_run_does(monkeypatch, flat, problem):
    """It does so if the library claims to take it and ranks have GPUs; here the server has none."""
    monkeypatch.setattr(sockets, "flat", flat)
    with pretend() as books:
        def act(world, aware=True, workers=GPU):
            world.cuda_aware = aware and world.rank > 0
            with Kernels(books):
                return [*doctor.check_gpu_memory(world, workers if world.rank else torch.device("cpu"))]
        (check,), *others = together(3, act)
        assert check.name == "GPU memory" and check.problem.startswith(problem) and bool(check.problem) == bool(problem)
        assert others == [[], []]
        assert together(2, partial(act, workers=torch.device("cpu"))) == [[], []]
        assert together(2, partial(act, aware=None)) == [[], []]


def test_a_network_that_changes_bytes_on_the_way_is_seen_and_refused_where_it_was_asked_for(monkeypatch):
    """Each rank's own memory is read correctly, but bytes change between the ranks."""
    monkeypatch.setattr(gpu_probe, "send_to_itself", lambda world, device: "")
    monkeypatch.setattr(sockets, "flat", wrong)
    with pretend() as books:
        def act(world):
            with Kernels(books):
                try:
                    return gpu_probe.probe_gpu_memory("on", world, GPU, wanted=world.rank > 0)
                except BadInput as error:
                    return str(error)
        server, *workers = together(3, act)
    assert server == (False, "")
    assert all(said.startswith("comm.cuda_aware = on, but a megabyte that went between") for said in workers)


def test_an_mpi_library_that_fails_between_the_ranks_names_the_setting(monkeypatch):
    """The others wait for that rank, so the run cannot go on by the host's memory."""
    def fail(world, device, gpu_direct):
        raise RuntimeError("MPI_ERR_OTHER: cannot open the handle\nmore")
    monkeypatch.setattr(gpu_probe, "exchange_megabytes", fail)
    with pytest.raises(FedmpiError, match=r"^MPI cannot send GPU memory between these ranks \(MPI_ERR_OTHER: cannot "
                                          r"open the handle\); set comm.cuda_aware=off$"):
        gpu_probe.exchange_with_others(None, GPU, True)
    # a rank without a GPU has other reasons
    with pytest.raises(RuntimeError, match="cannot open"):
        gpu_probe.exchange_with_others(None, torch.device("cpu"), False)


@dataclass(frozen=True)
class Folded:
    """Two convolutions on digits that are stored as 64 numbers."""

    def build(self, shape, classes):
        return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3),
                             nn.Flatten(), nn.Linear(32, classes))


def test_convolutions_are_timed_once_and_kept_with_the_run(place, monkeypatch, capsys):
    """A continued run computes them the same way; on another GPU it warns that bits may differ."""
    asked, names = [], f"{Folded.__module__}:{Folded.__name__}"

    def seconds(layer, shape, clients, device):
        asked.append((shape[1:], clients))
        # The first one is faster unfolded, the second one as it is.
        return [2., 1., 1., 2.][(len(asked) - 1) % 4]
    monkeypatch.setattr(convolutions, "time_layer", seconds)
    # These flags would be set for the whole process, which runs further tests.
    monkeypatch.setattr(gpu_card, "use_deterministic_kernels", lambda: None)
    config = json.loads((place / "c.yaml").read_text())
    (place / "images.yaml").write_text(json.dumps(
        config | {"model": {"name": names}, "method": {"name": "fedavg"}, "engine": "vmap"}))

    def led(*words, resume=None):
        with pretend():
            assert run_alone(str(place / "images.yaml"), [*words], str(place / "images"), resume) == 0
        return capsys.readouterr().out
    assert "convolutions as products of patches: 1\n" in led("rounds=1")
    assert asked == 2 * [((1, 8, 8), 5)] + 2 * [((2, 6, 6), 5)]
    snapshot = checkpoint.read_checkpoint(checkpoint.find_newest(place / "images" / "checkpoints")[0])
    assert snapshot.extra["convolutions"] == ["1"] == result(place, "images")["convolutions"]
    monkeypatch.setattr(gpu_card, "describe_gpu", lambda device: "Another, driver 1")
    said = led("rounds=2", resume="auto")
    assert len(asked) == 4 and result(place, "images")["convolutions"] == ["1"]
    assert "warning: the checkpoint was written on Pretended, driver" in said and "this run is on Another" in said


@pytest.mark.parametrize("engine, reduce, measured", [("loop", "exact", True), ("vmap", "exact", False),
                                                      ("loop", "float32", False)])
def test_measured_speeds_do_not_choose_who_trains_beside_whom(place, monkeypatch, engine, reduce, measured):
    """With `vmap` on a GPU the last bits depend on which clients are trained together, and sums in single precision
    depend on it everywhere."""
    seen = []
    monkeypatch.setattr(gpu_card, "use_deterministic_kernels", lambda: None)
    monkeypatch.setattr(Run, "run_rounds",
                        lambda run: seen.append((run.pace.measured, depends_on_neighbours(run))) or True)
    monkeypatch.setattr(run_module, "finish_run", lambda run: 0)
    with pretend():
        run_alone(str(place / "c.yaml"), [f"engine={engine}", f"server.reduce={reduce}"],
                  str(place / f"{engine}-{reduce}"))
    assert seen == [(measured, engine == "vmap")]


def test_ranks_count_as_equally_fast_where_speeds_are_not_measured():
    who = SimpleNamespace(sizes=np.full(4, 30), ids=np.arange(4))
    for measured in (True, False):
        pace = Pace(np.array([1, 1, 2, 2]), movable=True)
        pace.measured = measured
        pace.choose_ranks(who)
        pace.record(np.array([0., 3., 1.]), np.zeros(3), who)
        assert (pace.speeds[0] < pace.speeds[1]) == measured
