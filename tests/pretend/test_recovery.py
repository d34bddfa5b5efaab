"""A GPU that fails: with short memory fewer clients are trained at once, a step that cannot be recorded is called, and
a broken GPU ends the run with its own message."""
from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedmpi.engines import engine_choice, vmap
from fedmpi.engines.gpu_errors import is_gpu_broken, is_out_of_memory
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.methods.fedamp import FedAMP, Message
from fedmpi.methods.fedavg import FedAvg
from fedmpi.models.build import make_blank_samples
from tests.clients.verbs import Bench, plain, with_features
from tests.federations import Digits, Lab, apart, method, mlp
from tests.pretend import GPU, pretend

pytestmark = pytest.mark.slow("a pretended GPU checks every call")

SIZES = (57, 11, 3, 10)
SHORT = [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
         RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
         RuntimeError("FIND was unable to find an engine to execute this computation"),
         RuntimeError("CUDA error: out of memory")]
BROKEN = RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.fixture
def books():
    with pretend() as books:
        yield books


def run(engine, verb=plain, **local):
    return {c: w.cpu() for c, w in Bench(SIZES, device=GPU).run(engine, verb, **local).items()}


def near(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[c], b[c], rtol=0, atol=1e-6) for c in a)


@pytest.mark.parametrize("error", SHORT, ids=lambda error: type(error).__name__ + str(error)[-20:])
def test_short_memory_halves_the_chunk_and_says_so(books, error, caplog):
    expected, engine = run(Vmap()), Vmap()
    books.failing = [150, error]
    assert near(run(engine), expected) and engine.most == 2 and is_out_of_memory(error) and not is_gpu_broken(error)
    line, = caplog.messages
    assert line.startswith("fedmpi: memory is short for 4 clients at once, 2 are tried") and str(error)[:20] in line


def test_a_chunk_grows_back(books, monkeypatch):
    monkeypatch.setattr(vmap, "CHUNKS_BEFORE_DOUBLING", 3)
    engine = Vmap()
    books.failing = [150, SHORT[0]]
    # Two chunks fit.
    run(engine)
    assert (engine.most, engine.fitted) == (2, 2)
    engine.apply, widths = engine.apply, []
    for _ in range(3):
        run(engine)
        widths.append(engine.most)
    assert widths[0] == 4 and widths[-1] > 4 and engine.most <= vmap.MAX_CLIENTS_AT_ONCE


def test_models_are_measured_in_halves_if_memory_is_short(books, caplog):
    """No client is left out or measured twice; a single model that does not fit ends the run."""
    lab = Lab(method("fedavg", mlp()), Digits((*SIZES, 12), test=2), Vmap(), device=GPU)
    lab.round(0)
    evaluator = lab.group.evaluator
    expected, real, taken = evaluator.measure_clients(0, 5), evaluator._measure_batch, []

    def crowded(models, room=1):
        if len(models) > room:
            raise SHORT[0]
        taken.append(len(models))
        real(models)
    evaluator._measure_batch = crowded
    assert (evaluator.measure_clients(0, 5) == expected).all() and taken == [1] * 5
    assert [line.partition(" are tried")[0] for line in caplog.messages] == [
        f"fedmpi: memory is short to measure {n} models at once, {n // 2}" for n in (5, 2, 3, 2)]
    evaluator._measure_batch = lambda models: crowded(models, 0)
    with pytest.raises(torch.OutOfMemoryError):
        evaluator.measure_clients(0, 5)


def test_a_single_client_that_does_not_fit_ends_the_run(books):
    books.failing = [20, SHORT[1]]
    with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
        Bench((5,), device=GPU).run(Vmap(), plain)


def test_a_single_client_for_whose_recording_memory_is_short_goes_on_without(books, caplog):
    """A recording needs more memory than the step that it records."""
    alone = Bench((57,), device=GPU)
    expected, engine = alone.run(Vmap(), plain, epochs=4), Vmap(graphs="on")
    real = engine.graphs.record

    def record(*of):
        engine.graphs.record = real
        raise SHORT[0]
    engine.graphs.record = record
    assert near(alone.run(engine, plain, epochs=4), expected) and engine.graphs.mode == "off"
    line, = caplog.messages
    assert line.startswith("fedmpi: goes on without CUDA graphs") and "Tried to allocate" in line


@dataclass(frozen=True)
class Two(FedAvg):
    """A method whose clients are evaluated by two models, as a tuple or one behind the other, and before they adapt by
    one."""
    nested: bool = True

    def personal(self, shared, mine, data):
        both = data.descend(self.model, shared.w), shared.w
        return both if self.nested else torch.cat(both)

    def unadapted(self, shared, mine):
        return shared.w

    def predict(self, w, x):
        if len(w) == self.model.size:
            return self.model(w, x)
        first, second = w if self.nested else w.unflatten(0, (2, -1)).unbind()
        return self.model(first, x) + self.model(second, x)


@pytest.mark.parametrize("nested", [True, False])
def test_weights_of_several_forms_are_measured(books, nested):
    tables = []
    for engine in (Loop(), Vmap()):
        lab = Lab(Two(nested=nested).with_model(mlp()), Digits(SIZES, test=4), engine, device=GPU)
        lab.round(0)
        tables.append(lab.group.evaluator.measure_clients(0, 4))
    assert tables[0][:, 2, 0].all() and np.allclose(*tables, atol=1e-5, equal_nan=True)


def test_other_errors_are_not_taken_for_short_memory(books):
    books.failing = [150, RuntimeError("The size of tensor a (3) must match")]
    with pytest.raises(RuntimeError, match="must match"):
        run(Vmap())


@pytest.mark.parametrize("error, expected", [
    (BROKEN, True), (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True),
    (RuntimeError("vmap: called random operation while in randomness error mode"), False), (SHORT[0], False)])
def test_the_probe_takes_no_broken_gpu_for_a_network_that_vmap_cannot_train(books, monkeypatch, error, expected):
    lab = Lab(method("fedavg", mlp()), Digits(SIZES, test=2), device=GPU)
    lab.train(0)

    def timed(candidate, group, shared):
        if candidate.name == "vmap":
            raise error
        return 1.
    monkeypatch.setattr(engine_choice, "time_engine", timed)
    assert is_gpu_broken(error) is expected
    if expected:
        with pytest.raises(RuntimeError, match=str(error)[:20]):
            lab.group.time_engines()
    else:
        assert lab.group.time_engines().tolist() == [1, float("inf")]


@dataclass(frozen=True)
class OnTheHost(FedAMP):
    """Its author makes the message's template without a thought of GPUs."""

    def message_template(self):
        return Message(torch.zeros(self.model.size))


def test_a_template_made_on_the_host_is_tried_on_the_gpu(books):
    """In the probe of both engines, and of coupled samples, as real messages are."""
    spent = Lab(OnTheHost().with_model(mlp()), Digits(SIZES, test=2), device=GPU).group.time_engines()
    assert np.isfinite(spent).all()


def waits(model, shared, mine, data):
    """Train a network that reads its numbers in every step."""
    real = model.module.forward

    def forward(x):
        torch.cuda.synchronize()
        return real(x)
    model.module.forward = forward
    try:
        return data.descend(model, mine.w)
    finally:
        del model.module.forward


def test_a_step_that_waits_is_found_out_before_any_recording(books, caplog):
    """So the allocator is as before, and the step that showed it is taken once."""
    engine = Vmap(graphs="on")
    assert near(run(engine, waits, epochs=4), run(Vmap(), plain, epochs=4))
    assert not books.shaken and not books.graphs and engine.graphs.mode == "off" and books.sync_debug == 0
    line, = caplog.messages
    assert "goes on without CUDA graphs" in line and "synchronizing" in line


@pytest.mark.parametrize("error", [SHORT[0], RuntimeError("CUDA error: operation not permitted")])
@pytest.mark.parametrize("at", ["warm", "capture"])
def test_a_recording_that_fails(books, monkeypatch, error, at, caplog):
    """The engine handles short memory, whatever error ends the capture; after other errors steps are called.
    The allocator learns that the capture is over, and the GPU's stream waits for what was begun."""
    expected = run(Vmap(), epochs=4)
    engine, real = Vmap(graphs="on"), vmap.StepRecorder.record

    def recorded(self, step, device):
        books.failing = [5, error] if not books.graphs and not caplog.messages else None
        return real(self, step, device)
    if at == "capture":
        monkeypatch.setattr(vmap.StepRecorder, "record", recorded)
    else:
        books.failing = [60, error]
    if at == "warm" and not is_out_of_memory(error):
        with pytest.raises(RuntimeError, match="not permitted"):
            run(engine, epochs=4)
    else:
        assert near(run(engine, epochs=4), expected)
        assert engine.graphs.mode == ("on" if is_out_of_memory(error) else "off") and engine.most == (
            2 if is_out_of_memory(error) else vmap.MAX_CLIENTS_AT_ONCE)
    assert not books.shaken and books.capture is None and books.stream is torch.cuda.default_stream()
    assert engine.graphs.stream in torch.cuda.current_stream().waited
    torch.cuda.empty_cache()
    # The generator draws again.
    torch.randn(2, device=GPU)


def test_graphs_are_captured_on_one_stream_and_disturbed_by_no_other_thread(books):
    engine = Vmap(graphs="on")
    for _ in range(2):
        run(engine, epochs=4)
    assert len(books.graphs) > 2 and {graph.mode for graph in books.graphs} == {"thread_local"}
    assert {graph.stream for graph in books.graphs} == {engine.graphs.stream}
    # the GPU's own stream and that of the graphs
    assert len(type(engine.graphs.stream).made) == 2


@pytest.mark.parametrize("verb", [plain, with_features])
def test_a_module_serves_the_model_of_the_cpu_and_that_of_the_gpu_by_turns(books, verb):
    """Rank 0 does so when it counts a client's work (`edge`) or rehearses between two rounds; both share the module."""
    cpu, gpu = Bench(SIZES), Bench(SIZES)
    gpu.model, gpu.method.model = cpu.model.to(GPU), cpu.model.to(GPU)
    gpu.store, gpu.shared = Bench(SIZES, device=GPU).store, Bench(SIZES, device=GPU).shared
    expected = cpu.run(Loop(), verb)
    for _ in range(2):
        found = gpu.run(Loop(), verb)
        assert all(torch.equal(found[c].cpu(), expected[c]) for c in expected)
        again = cpu.run(Loop(), verb)
        assert all(torch.equal(again[c], expected[c]) for c in expected)


def test_rank_0_may_count_work_and_rehearse_after_training_on_a_gpu(books):
    """ifca runs the whole model forward, which leaves the GPU's parameters in its module."""
    from fedmpi.engines.dry_run import count_round_work
    from fedmpi.engines.rehearsal import rehearse_loop
    lab = Lab(method("ifca", mlp()), Digits(SIZES, test=2), device=GPU)
    for t in range(2):
        lab.round(t)
        sample = make_blank_samples(lab.federation.shape, lab.federation.dtype)
        local = lab.group.plan_training(0)
        assert count_round_work(lab.method, lab.shared, lab.group.store.first, sample, 33, local).trained == 33
        rehearse_loop(lab.method, lab.shared, lab.group.store.first, sample)
    assert apart(lab.state(), Lab(method("ifca", mlp()), Digits(SIZES, test=2)).go(2).state()) < 1e-6


@pytest.fixture(autouse=True)
def warnings(caplog):
    caplog.set_level(logging.WARNING, "fedmpi")
