"""Recorded and replayed steps give the results of called ones: as CUDA graphs if there is a GPU, otherwise on a CPU
with the same use of memory."""
from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from fedmpi.engines import cuda_graphs
from fedmpi.engines.cuda_graphs import MIN_STEPS_TO_RECORD, WARMUP_CALLS, StepRecorder
from fedmpi.engines.vmap import Vmap
from tests.clients.verbs import (
    Bench,
    clip,
    momentum,
    only_head,
    plain,
    pull_momentum,
    pulls,
    scan,
    scan_streams,
    spread,
    with_features,
)

CPU = torch.device("cpu")
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
SIZES = (57, 1, 11, 3, 10)


def checked() -> None:
    """Do nothing: nobody waits for the end."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("image", [False, True], ids=["mlp", "cnn"])
@pytest.mark.parametrize("verb", [plain, momentum, pulls, pull_momentum, only_head, clip, spread, with_features,
                                  scan, scan_streams])
def test_not_a_bit_apart(verb, image, device):
    """There are both many and few steps with the same number of clients."""
    bench, engines = Bench(SIZES, image, device), [Vmap(graphs=mode) for mode in ("off", "on")]
    for engine in engines:
        # On a GPU each engine would time the ways of a convolution by itself.
        engine.unfolded = []
    called, replayed = (bench.run(engine, verb, epochs=4) for engine in engines)
    assert all(torch.equal(called[c], replayed[c]) for c in bench.clients)


def test_the_way_that_can_be_recorded_is_taken(monkeypatch):
    """It records once for each number of clients that still have a batch: 10 steps for one, 2 for two, 2 for all."""
    recorded = []

    def record(step, stream):
        recorded.append(step)
        return step
    monkeypatch.setattr(cuda_graphs, "record_step", record)
    bench = Bench(SIZES)
    for mode, expected in (("off", 0), ("auto", 0), ("on", 1)):
        bench.run(Vmap(graphs=mode), plain)
        assert len(recorded) == expected


@pytest.mark.parametrize("times", [0, 1, WARMUP_CALLS, WARMUP_CALLS + 1, MIN_STEPS_TO_RECORD, 40])
def test_every_step_is_taken(times):
    taken = []
    StepRecorder("on").repeat(lambda: taken.append(0), times, CPU, checked)
    assert len(taken) == times


@pytest.mark.parametrize("mode, noted", [("off", 6), ("on", 6 - WARMUP_CALLS)])
def test_every_step_is_a_sign_of_progress(mode, noted):
    """A replayed step is one, too; those before a recording are none."""
    bench = Bench((7,) * 3)
    bench.run(Vmap(graphs=mode), plain, steps=6)
    assert bench.context.steps == noted


def test_what_cannot_be_recorded_is_called(monkeypatch, caplog):
    """The log has one line for this and all further steps."""
    def record(step, stream):
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines")
    monkeypatch.setattr(cuda_graphs, "record_step", record)
    recorder, taken = StepRecorder("on"), []
    for _ in range(2):
        recorder.repeat(lambda: taken.append(0), 10, CPU, checked)
    assert len(taken) == 20
    line, = caplog.messages
    assert line.endswith("a step cannot be recorded: operation not permitted when stream is capturing")


def test_too_little_memory_is_left_to_the_engine(monkeypatch):
    def record(step, stream):
        raise torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(cuda_graphs, "record_step", record)
    with pytest.raises(torch.OutOfMemoryError):
        StepRecorder("on").repeat(lambda: None, 10, CPU, checked)


def test_what_a_failed_recording_had_made_is_gone_with_its_error(monkeypatch):
    """Fewer clients are then tried on a GPU whose memory is short."""
    for name, stand_in in (("graph", nullcontext), ("device", nullcontext), ("CUDAGraph", object),
                           ("graph_pool_handle", object), ("current_stream", object), ("set_stream", object)):
        monkeypatch.setattr(torch.cuda, name, lambda *of, stand_in=stand_in: stand_in())
    monkeypatch.setattr(cuda_graphs, "end_failed_capture", lambda *of: None)
    made = []

    def step():
        work = torch.zeros(10)
        made.append(weakref.ref(work))
        raise torch.OutOfMemoryError("CUDA out of memory")
    gc.disable()
    try:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            cuda_graphs.record_step(step, SimpleNamespace(device=0))
        assert made[0]() is not None
        del caught
        assert made[0]() is None
    finally:
        gc.enable()
