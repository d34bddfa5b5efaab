"""Sums over clients: the same bits in any grouping, right to double precision, and nothing bad goes unnoticed."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmpi.comm import exact


def rows(n=23, d=500, dtype=torch.float32):
    scale = torch.logspace(-6, 2, d)      # of very different sizes, as weights and counters are
    return (torch.randn(n, d, generator=torch.Generator().manual_seed(1)) * scale).to(dtype)


def weights(n=23):
    w = np.random.default_rng(2).uniform(.1, 5, n)
    return torch.from_numpy(w / w.sum())


def total(rows, weights, groups=None, k=None):
    into = torch.zeros(rows.shape[1:] if groups is None else (k, *rows.shape[1:]), dtype=torch.int64)
    exact.accumulate(rows, weights, into, groups)
    return into


@given(cuts=st.lists(st.integers(0, 23), max_size=6), seed=st.integers(0, 99))
def test_any_grouping_gives_the_same_bits(cuts, seed):
    x, w = rows(), weights()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(23))
    parts = np.split(order.numpy(), sorted(cuts))
    assert torch.equal(total(x, w), sum(total(x[p], w[p]) for p in parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_sums_are_right(dtype):
    x, w = rows(dtype=dtype), weights()
    assert (exact.value(total(x, w)) - (x.double() * w[:, None]).sum(0)).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_rows_are_left_alone(dtype):
    x = rows(dtype=dtype)
    before = x.clone()
    total(x, weights())
    assert torch.equal(x, before)


def test_groups_are_sums_of_their_members():
    x, w = rows(), weights()
    groups = torch.arange(23) % 3
    found = total(x, w, groups, 4)
    for j in range(3):
        assert torch.equal(found[j], total(x[groups == j], w[groups == j]))
    assert not found[3].any()


def test_a_large_value_does_not_change_how_others_are_rounded():
    x, w = rows(d=3000), weights()
    large = torch.cat([x, torch.full((23, 1), 3e5)], 1)
    mixed = x.clone()
    mixed[::2, 7] = 2e4
    others = torch.arange(3000) != 7
    assert torch.equal(total(large, w)[:-1], total(x, w))
    assert torch.equal(total(mixed, w)[others], total(x, w)[others])


def test_it_adds_to_what_is_there():
    x, w = rows(), weights()
    into = total(x[:9], w[:9])
    exact.accumulate(x[9:], w[9:], into)
    assert torch.equal(into, total(x, w))


@pytest.mark.parametrize("value", [99., 101., 250., -250., 5e3])
def test_the_fast_way_is_taken_by_small_values_alone(value):
    assert exact.value(total(torch.tensor([[value, 1.]]), torch.ones(1, dtype=torch.float64))).tolist() == [value, 1.]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_name_the_row(bad):
    x = rows()
    x[17, 3:6] = bad
    with pytest.raises(exact.NotFinite, match="3 non-finite values of 500") as error:
        total(x, weights())
    assert error.value.row == 17


@pytest.mark.parametrize("large", [1e6, -1e6, 1e30])
@pytest.mark.parametrize("n", [1, 23])
def test_values_out_of_range_name_the_row(large, n):
    """Also where each contribution is small enough, but their sum would not be."""
    x = rows(n)
    x[:, 4] = large
    with pytest.raises(exact.NotFinite, match="out of the range") as error:
        total(x, weights(n))
    assert error.value.row == 0


def test_the_whole_range_can_be_summed():
    x = torch.full((23, 2), 4e5) * torch.tensor([1., -1.])
    assert (exact.value(total(x, weights())) - torch.tensor([4e5, -4e5])).abs().max() < 1e-6


def test_nothing_to_add():
    assert not total(torch.empty(0, 5), torch.empty(0, dtype=torch.float64)).any()
    assert total(torch.empty(3, 0), torch.ones(3, dtype=torch.float64)).shape == (0,)


def test_what_a_gpu_computes_is_the_same(monkeypatch):
    """It takes more at once; rows here are longer than a block of a CPU."""
    x, w = rows(d=2 * exact.BLOCK + 3), weights()
    blocks = total(x, w)
    monkeypatch.setattr(exact, "BLOCK", exact.BLOCK_GPU)
    assert torch.equal(total(x, w), blocks)


@given(seed=st.integers(0, 99), n=st.integers(1, 9))
def test_middles_are_rounded_the_same_way_whatever_was_added_before(seed, n):
    """Weights and values of few bits, so that products often lie in the middle of two multiples of 2^-44."""
    r = np.random.default_rng(seed)
    x = torch.from_numpy(r.integers(-9, 9, (n, 40)) * 2. ** r.integers(-46, -40, (n, 1))).float()
    w = torch.from_numpy(2. ** -r.integers(3, 6, n))
    alone = sum(total(x[i:i + 1], w[i:i + 1]) for i in range(n))
    assert torch.equal(total(x, w), alone)
    assert torch.equal(total(x.flip(0), w.flip(0)), alone)


def test_without_fused_additions_sums_are_as_exact(monkeypatch):
    fused = total(rows(), weights())
    monkeypatch.setattr(exact, "fuses", lambda device: False)
    monkeypatch.setattr(exact, "chained", None)
    test_any_grouping_gives_the_same_bits()
    assert (total(rows(), weights()) - fused).abs().max() <= 23


def test_weights_with_their_last_bits_set():
    w = torch.tensor([1., -.1, .25], dtype=torch.float64)
    assert exact.odd(w)[0] == 1 + 2. ** -52 and ((exact.odd(w) - w).abs() <= 2. ** -52 * w.abs()).all()
    assert torch.equal(exact.odd(exact.odd(w)), exact.odd(w))
