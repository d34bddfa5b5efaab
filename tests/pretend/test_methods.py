"""Every method on the pretended GPU, by each engine: nothing that CUDA refuses, nothing that waits in a step, recorded
steps that are the called ones, and as many waits and launches in a round as the table says."""
from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from tests.federations import CPU, apart
from tests.methods.table import NAMES, marked
from tests.pretend import runs
from tests.pretend.counts import COUNTS, TORCH

each = pytest.mark.parametrize("name", marked(*NAMES))
engines = pytest.mark.parametrize("how", ["loop", "vmap", "graphs"])
NEAR = .1      # of the launches, with another PyTorch
# Methods that are never recorded: their loss or walk is their own, which may do anything; fedfomo takes too few steps
CALLED = {"cgpfl", "fedcr", "fedsr", "per_fedavg", "pfedme", "fedfomo"}


@cache
def driven(name: str, how: str) -> runs.Seen:
    return runs.driven(name, how)


@each
@engines
def test_a_round_costs_what_it_cost(name, how):
    """An improvement is written down in counts.py, a regression is not: `python -m tests.pretend` prints the table."""
    found, expected = driven(name, how).counts, COUNTS[name, how]
    exactly = torch.__version__.startswith(TORCH)
    for phase, (syncs, launches), (waits, most) in zip(runs.PHASES, found, expected, strict=True):
        assert syncs == waits, f"{phase}: {driven(name, how).waits}"
        assert launches == most if exactly else abs(launches - most) <= NEAR * most, phase


@each
@engines
def test_no_step_waits(name, how):
    """Three times as many steps wait no more often, and copy nothing more to the GPU or from it. No copy is
    asynchronous in name only, no kernel adds up in any order."""
    seen = driven(name, how)
    assert not seen.unpinned and not seen.atomic
    assert seen.steps[:1] == seen.steps[1:], seen.waits


@each
def test_recorded_steps_are_the_called_ones(name):
    """Graphs are replayed from their records, and each replay was held to its step."""
    called, replayed = driven(name, "vmap"), driven(name, "graphs")
    assert called.digest == replayed.digest and np.array_equal(called.judged, replayed.judged, equal_nan=True)
    assert not called.graphs and bool(replayed.graphs) == (name not in CALLED)
    assert all(graph.replays and graph.step for graph in replayed.graphs)


@each
@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_a_gpu_computes_what_a_cpu_does(name, how):
    cpu = runs.laboratory(name, how, device=CPU).go(2)
    assert apart(driven(name, how).state, cpu.state()) < 1e-5
    np.testing.assert_allclose(driven(name, how).judged[:, 0], cpu.judge(2)[:, 0], rtol=1e-4, atol=1e-4)
