"""Every method on the simulated GPU with each engine: it does nothing that CUDA refuses, no step waits, recorded steps
equal called ones, and a round has as many waits and launches as the table says."""
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
# Share by which launches may differ with another version of PyTorch.
NEAR = .1
# Methods that are never recorded, because their own loss may do anything; fedfomo takes too few steps.
CALLED = {"fedcr", "fedsr", "fedfomo"}


@cache
def driven(name: str, how: str) -> runs.Seen:
    return runs.driven(name, how)


@each
@engines
def test_a_round_costs_what_it_cost(name, how):
    """An improvement is entered in counts.py, a regression is not; `python -m tests.pretend` prints the table."""
    found, expected = driven(name, how).counts, COUNTS[name, how]
    exactly = torch.__version__.startswith(TORCH)
    for phase, (syncs, launches), (waits, most) in zip(runs.PHASES, found, expected, strict=True):
        assert syncs == waits, f"{phase}: {driven(name, how).waits}"
        assert launches == most if exactly else abs(launches - most) <= NEAR * most, phase


@each
@engines
def test_no_step_waits(name, how):
    """Three times as many steps do not wait more often and do not copy more to or from the GPU. No copy is asynchronous
    in name only, and no kernel adds up in any order."""
    seen = driven(name, how)
    assert not seen.unpinned and not seen.atomic
    assert seen.steps[:1] == seen.steps[1:], seen.waits


@each
def test_recorded_steps_are_the_called_ones(name):
    """Graphs are replayed, and each replay was compared with its step."""
    called, replayed = driven(name, "vmap"), driven(name, "graphs")
    assert called.digest == replayed.digest and np.array_equal(called.evaluated, replayed.evaluated, equal_nan=True)
    assert not called.graphs and bool(replayed.graphs) == (name not in CALLED)
    assert all(graph.replays and graph.step for graph in replayed.graphs)


@each
@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_a_gpu_computes_what_a_cpu_does(name, how):
    cpu = runs.laboratory(name, how, device=CPU).go(2)
    assert apart(driven(name, how).state, cpu.state()) < 1e-5
    np.testing.assert_allclose(driven(name, how).evaluated[:, 0], cpu.evaluate(2)[:, 0], rtol=1e-4, atol=1e-4)
