"""What tests of methods do not cover on the simulated GPU: convolutions, robust means, attacks, precisions, large
numbers, shares of memory, and the order of sums."""
from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedmpi.comm import exact
from fedmpi.config.evaluation import Evaluate
from fedmpi.config.schema import Server, StateSettings, resolve
from fedmpi.engines import batch_plan, cohort, gpu_card
from fedmpi.engines.batch_plan import LocalTraining
from fedmpi.engines.cohort import Cohort
from fedmpi.engines.padding import pad_samples
from fedmpi.engines.step import ALIGNED_NUMBERS, allocate_rows
from fedmpi.engines.vmap import Vmap
from fedmpi.faults import Attack, Faults
from fedmpi.models import precision
from fedmpi.text import GIB
from tests.comm.together import together
from tests.federations import CPU, TRAIN, Digits, Lab, apart, method, mlp, standardised
from tests.models.test_constants import Scaled, digits
from tests.pretend import GPU, on_gpu, pretend, runs
from tests.pretend.cuda import TOTAL

pytestmark = pytest.mark.slow("a pretended GPU checks every call")

ENGINES = ("loop", "vmap", "graphs")


@pytest.fixture
def books():
    with pretend() as books:
        yield books


def held_to_the_cpu(name: str, how: str, image=False, near=1e-5, **sections) -> runs.Seen:
    """Drive a method; its states must be those of a CPU."""
    seen = runs.driven(name, how, image, **sections)
    cpu = runs.laboratory(name, "loop" if how == "loop" else "vmap", image, device=CPU, **sections).go(2)
    assert apart(seen.state, cpu.state()) < near
    return seen


@pytest.mark.parametrize("name", ["fedavg", "fedrep"])
@pytest.mark.parametrize("how", ENGINES)
def test_convolutions(name, how):
    """Without the flags of `gpu_card.use_deterministic_kernels` their gradients may be added up in any order."""
    seen = held_to_the_cpu(name, how, image=True)
    assert seen.atomic and not seen.unpinned and bool(seen.graphs) == (how == "graphs")


@pytest.mark.parametrize("how", ENGINES)
def test_constants(how, monkeypatch):
    """A network's buffers are on the GPU before the first step, and recorded steps read them there."""
    monkeypatch.setattr(runs, "mlp", lambda: digits(Scaled))
    seen = held_to_the_cpu("fedper", how)
    assert seen.steps[:1] == seen.steps[1:] and not seen.unpinned and bool(seen.graphs) == (how == "graphs")


@pytest.mark.parametrize("measures", [[], ["auc"]])
def test_clients_are_measured_on_their_own_samples_however_many(books, measures):
    """Models are measured together, in blocks of 64 samples, and a block leaves out clients with fewer."""
    def evaluate(device):
        federation = Digits((20, 9, 30, 4), test=130)
        federation.parts = [part._replace(x_test=part.x_test[:n], y_test=part.y_test[:n])
                            for part, n in zip(federation.parts, (2, 130, 64, 70), strict=True)]
        lab = Lab(method("fedper", mlp()), federation, Vmap(), device=device, evaluate=Evaluate(measures=measures))
        lab.open()
        lab.train(0)
        return lab.evaluate(1)
    np.testing.assert_allclose(evaluate(GPU), evaluate(CPU), atol=1e-6)


def test_convolutions_as_products_of_patches(books):
    lab = runs.laboratory("fedavg", "graphs", image=True)
    lab.group.engine.unfolded = ["0"]
    lab.go(2)
    assert apart(lab.state(), runs.laboratory("fedavg", "vmap", image=True, device=CPU).go(2).state()) < 1e-5
    assert not books.count("atomic") and books.graphs


@pytest.fixture
def deterministic_kernels(monkeypatch):
    before = torch.backends.cudnn.deterministic, torch.utils.deterministic.fill_uninitialized_memory
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    gpu_card.use_deterministic_kernels()
    yield
    torch.set_deterministic_debug_mode("default")
    torch.backends.cudnn.deterministic, torch.utils.deterministic.fill_uninitialized_memory = before
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_one_order(deterministic_kernels):
    assert not runs.driven("fedavg", "loop", image=True).atomic
    assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
    assert torch.is_deterministic_algorithms_warn_only_enabled() and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.parametrize("sections", [
    {"reduce": "float32"}, {"server": Server(aggregation="median")},
    {"server": Server(aggregation="trimmed_mean", trim=.3)}, {"server": Server(clip_norm=.05)},
    {"attack": Attack("sign_flip", share=.3)},
    {"attack": Attack("label_flip", share=.3)}, {"attack": Attack("noise", share=.3)},
    {"faults": Faults(bad_update="skip")}, {"train": replace(TRAIN, momentum=.9)}], ids=lambda s: str(s)[:40])
def test_settings(sections):
    """They are tested with the engine that does most at once."""
    held_to_the_cpu("fedavg", "vmap", near=2e-5, **sections)


@pytest.mark.parametrize("image, train", [
    (False, {"lr": .003, "optimizer": "adamw", "weight_decay": .1, "clip_norm": 1., "label_smoothing": .1}),
    (False, {"momentum": .9, "nesterov": True, "weight_decay": .1, "clip_norm": 1.}),
    (True, {"augment": ("crop", "flip"), "padding": 2})], ids=["adamw", "nesterov", "augment"])
def test_settings_of_local_training(image, train):
    """No step waits for the GPU, and recorded steps, whose moments and changes are there, equal called ones."""
    seen = {how: held_to_the_cpu("fedavg", how, image, train=replace(TRAIN, **train)) for how in ENGINES}
    assert seen["graphs"].digest == seen["vmap"].digest and seen["graphs"].graphs
    for found in seen.values():
        assert found.steps[:1] == found.steps[1:] and not found.unpinned, found.waits


@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_bf16(how, monkeypatch):
    monkeypatch.setattr(precision, "_autocast", True)
    held_to_the_cpu("ditto", how, near=1e-2)


def sums(values, groups, device):
    rows = [torch.from_numpy(v).to(device) for v in values]
    into = torch.zeros((3, 5) if groups is not None else 5, dtype=torch.int64, device=device)
    weights = torch.from_numpy(np.arange(1., len(rows) + 1) / 30)
    exact.accumulate(rows, weights, into, None if groups is None else torch.from_numpy(groups))
    return into.cpu()


@pytest.mark.parametrize("groups", [None, np.array([0, 2, 2, 0, 2])], ids=["sum", "groups"])
@pytest.mark.parametrize("scale, waits", [(1., 1), (99., 1), (500., 36)])
def test_sums_are_exact_and_look_once(books, scale, waits, groups):
    """Numbers that are not small take the longer way, after one wait that shows that."""
    values = np.random.default_rng(0).uniform(-scale, scale, (5, 5)).astype(np.float32)
    values[3, 2] = scale
    torch.ones(1, device=GPU).sub_(1)
    exact.fuses_additions(GPU)
    before = books.count("sync")
    found = sums(values, groups, GPU)
    assert torch.equal(found, sums(values, groups, CPU))
    # Six of the waits fetch five rows and the sum.
    assert books.count("sync") - before - 6 <= waits


@pytest.mark.parametrize("bad", [np.nan, np.inf, 6e5])
def test_what_cannot_be_summed_is_named(books, bad):
    values = np.ones((5, 5), np.float32)
    values[2, 1] = bad
    with pytest.raises(exact.NotFinite) as error:
        sums(values, None, GPU)
    assert error.value.row == 2


def test_rows_of_parameters_are_aligned(books):
    rows = allocate_rows(torch.ones(3, 70, device=GPU))
    assert rows.shape == (3, 70) and rows.stride() == (2 * ALIGNED_NUMBERS, 1) and rows.is_cuda


def test_what_is_trained_is_aligned(books, monkeypatch):
    """This holds for weights and velocities."""
    seen, real = [], cohort.bind_cohort

    def bound(net, work, *settings):
        seen.append(work.stride(0) % ALIGNED_NUMBERS)
        return real(net, work, *settings)
    monkeypatch.setattr(cohort, "bind_cohort", bound)
    runs.laboratory("fedavg", "vmap", train=replace(TRAIN, momentum=.9)).go(1)
    assert seen == [0]


def test_padding_and_subsets_are_those_of_a_cpu(books):
    rng = np.random.default_rng(0)
    xs = [torch.from_numpy(rng.integers(0, 255, (n, 2, 3), dtype=np.uint8)) for n in (70, 5, 1)]
    ys = [torch.from_numpy(rng.integers(1, 9, len(x))) for x in xs]
    local = LocalTraining(3, 0, 10, 1, None, .1, 0.)
    here, there = (Cohort(pad_samples(move(xs, device)), pad_samples(move(ys, device)), (70, 5, 1), (4, 2, 9), local)
                   for device in (CPU, GPU))
    for a, b in ((here, there), (here.subset(.6, 1, False, False), there.subset(.6, 1, False, False))):
        assert torch.equal(a.x, b.x.cpu()) and torch.equal(a.y, b.y.cpu()) and a.sizes == b.sizes and on_gpu(b.x)


def test_blank_samples_have_no_part_in_what_is_measured(books):
    """The network is undefined for them."""
    tables = [Lab(method("fedavg", standardised()), Digits(runs.SIZES, test=4), Vmap(), device=device).go(1).evaluate(1)
              for device in (CPU, GPU)]
    np.testing.assert_allclose(*tables, rtol=1e-5)
    assert np.isfinite(tables[0]).all()


def move(tensors, device):
    return tuple(t.to(device) for t in tensors)


@pytest.mark.parametrize("bytes_at_once, copies", [(batch_plan.NOISE_BYTES_AT_ONCE, 2), (1, 8)])
def test_noise_travels_for_many_steps_at_once(books, monkeypatch, bytes_at_once, copies):
    monkeypatch.setattr(batch_plan, "NOISE_BYTES_AT_ONCE", bytes_at_once)
    local, found = LocalTraining(3, 0, 10, 1, None, .1, 0.), []
    x, y = torch.zeros(2, 64, 2), torch.zeros(2, 64, dtype=torch.int64)
    for device in (CPU, GPU):
        there = Cohort(x.to(device), y.to(device), (64, 25), (4, 2), local)
        before = books.copies
        found.append([e.cpu() for e in there.noises((5,))])
        made = books.copies - before - len(found[-1])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)) and len(found[0]) == 7
    assert made == (copies if bytes_at_once == 1 else 1) - (bytes_at_once == 1)


def config(gib: float):
    return replace(resolve({}), state=StateSettings(memory=gib))


def test_room_follows_the_card_and_those_who_share_it(books):
    here = gpu_card.limit_memory(config(8.), CPU)
    assert here == (8 * GIB, 8 * GIB, 2 * GIB)
    whole, half = gpu_card.limit_memory(config(8.), GPU), gpu_card.limit_memory(config(8.), GPU, ranks=2)
    assert whole == (8 * GIB, 8 * GIB, (TOTAL - gpu_card.CUDA_CONTEXT_BYTES) / 4)
    assert half.chunk == (TOTAL / 2 - gpu_card.CUDA_CONTEXT_BYTES) / 4
    assert gpu_card.limit_memory(config(100.), GPU, ranks=4).states == (TOTAL / 4 - gpu_card.CUDA_CONTEXT_BYTES) / 4
    assert gpu_card.limit_memory(config(8.), GPU, ranks=1000).chunk == 0
    assert sum(gpu_card.limit_memory(config(1e9), GPU, ranks=3)) < TOTAL / 3


def test_ranks_that_share_a_gpu_are_counted(monkeypatch):
    """They are counted by host and by part of a GPU; the server and rank 4 have none."""
    uuids = {1: "GPU-a", 2: "GPU-a", 3: "MIG-b"}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=device.uuid))

    def act(world):
        uuid = uuids.get(world.rank)
        return gpu_card.count_ranks_on_gpu(world, SimpleNamespace(type="cuda" if uuid else "cpu", uuid=uuid))
    assert together(5, act) == [1, 2, 2, 1, 1]
    assert gpu_card.count_ranks_on_gpu(SimpleNamespace(size=1), GPU) == 1


def test_the_facts_of_a_card(books, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_card, "DRIVER_VERSION_FILE", tmp_path / "version")
    assert gpu_card.describe_gpu(CPU) == "" and gpu_card.describe_gpu(GPU).startswith(
        "Pretended, driver unknown, torch "
    )
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed\n")
    assert ", driver 570.124.06, torch " in gpu_card.describe_gpu(GPU)
