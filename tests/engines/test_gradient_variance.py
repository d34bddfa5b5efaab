"""The variance of gradients equals NumPy's, with the same bits for any number of clients at once."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.engines.gradient_variance import GradientVariance
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from tests.clients.verbs import Bench

SHAPES = (3, 5, 2), (7,)


@pytest.fixture
def gradients():
    """Five steps of gradients for four clients, of two parameters."""
    generator = torch.Generator().manual_seed(0)
    return [[1 + torch.randn(4, *shape, generator=generator) for shape in SHAPES] for _ in range(5)]


def spread(steps, c):
    seen = GradientVariance([torch.zeros(c, *shape) for shape in SHAPES])
    for grads in steps:
        seen.add([g[:c] for g in grads])
    return seen.value()


def test_it_is_the_variance_summed_over_coordinates(gradients):
    flat = torch.stack([torch.cat([g.flatten(1) for g in grads], 1) for grads in gradients]).double().numpy()
    np.testing.assert_allclose(spread(gradients, 4), flat.var(0, ddof=1).sum(1), rtol=1e-5)


def test_clients_drop_out_one_by_one(gradients):
    seen = GradientVariance([torch.zeros(4, *shape) for shape in SHAPES])
    for k, grads in zip((4, 4, 3, 2, 2), gradients, strict=True):
        seen.add([g[:k] for g in grads])
    found = [float(v) for v in seen.value()]
    assert found == [float(spread(gradients[:n], 4)[c]) for c, n in enumerate((5, 5, 3, 2))]


def test_a_single_gradient_has_none(gradients):
    assert not spread(gradients[:1], 4).any()


def test_bits_do_not_depend_on_the_number_of_clients(gradients):
    assert torch.equal(spread(gradients, 4)[:1], spread(gradients, 1))


@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
def test_training_is_the_same_with_it(engine):
    def watched(model, shared, mine, data):
        return data.descend(model, mine.w, pull=[(shared, .3, None)], spread=True)[0]

    def plain(model, shared, mine, data):
        return data.descend(model, mine.w, pull=[(shared, .3, None)])
    bench = Bench()
    one, other = bench.run(engine, watched), bench.run(engine, plain)
    assert all(torch.equal(one[c], other[c]) for c in bench.clients)


@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
def test_a_block_of_nothing_has_none(engine):
    def nothing(model, shared, mine, data):
        w, v = data.descend(model, mine.w, only=slice(0, 0), spread=True)
        return torch.cat([w, v[None]])
    bench = Bench()
    for c, found in bench.run(engine, nothing).items():
        assert torch.equal(found, torch.cat([bench.store.read(c).w, torch.zeros(1)]))
