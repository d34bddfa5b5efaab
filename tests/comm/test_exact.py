"""Sums over clients: the same bits in any grouping, exact to double precision, and bad values are noticed."""
from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpi.comm import exact


def rows(n=23, d=500, dtype=torch.float32):
    # Values have very different sizes, as weights and counters do.
    scale = torch.logspace(-6, 2, d)
    return (torch.randn(n, d, generator=torch.Generator().manual_seed(1)) * scale).to(dtype)


def weights(n=23):
    w = np.random.default_rng(2).uniform(.1, 5, n)
    return torch.from_numpy(w / w.sum())


def total(rows, weights, groups=None, k=None):
    into = torch.zeros(rows.shape[1:] if groups is None else (k, *rows.shape[1:]), dtype=torch.int64)
    exact.accumulate(rows, weights, into, groups)
    return into


@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 23), max_size=6), seed=st.integers(0, 99))
def test_any_grouping_gives_the_same_bits(cuts, seed):
    x, w = rows(), weights()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(23))
    parts = np.split(order.numpy(), sorted(cuts))
    assert torch.equal(total(x, w), sum(total(x[p], w[p]) for p in parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_sums_are_right(dtype):
    x, w = rows(dtype=dtype), weights()
    assert (exact.read_fixed_point(total(x, w)) - (x.double() * w[:, None]).sum(0)).abs().max() < 1e-12


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
    found = total(torch.tensor([[value, 1.]]), torch.ones(1, dtype=torch.float64))
    assert exact.read_fixed_point(found).tolist() == [value, 1.]


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
    """It is also named if each contribution is small enough but their sum is not."""
    x = rows(n)
    x[:, 4] = large
    with pytest.raises(exact.NotFinite, match="out of the range") as error:
        total(x, weights(n))
    assert error.value.row == 0


def test_the_whole_range_can_be_summed():
    x = torch.full((23, 2), 4e5) * torch.tensor([1., -1.])
    assert (exact.read_fixed_point(total(x, weights())) - torch.tensor([4e5, -4e5])).abs().max() < 1e-6


def test_nothing_to_add():
    assert not total(torch.empty(0, 5), torch.empty(0, dtype=torch.float64)).any()
    assert total(torch.empty(3, 0), torch.ones(3, dtype=torch.float64)).shape == (0,)


def test_what_a_gpu_computes_is_the_same(monkeypatch):
    """A GPU takes larger blocks; rows here are longer than a block of a CPU."""
    x, w = rows(d=2 * exact.NUMBERS_PER_BLOCK + 3), weights()
    blocks = total(x, w)
    monkeypatch.setattr(exact, "NUMBERS_PER_BLOCK", exact.NUMBERS_PER_BLOCK_GPU)
    assert torch.equal(total(x, w), blocks)


@given(seed=st.integers(0, 99), n=st.integers(1, 9))
def test_middles_are_rounded_the_same_way_whatever_was_added_before(seed, n):
    """Weights and values have few bits, so products often lie in the middle of two multiples of 2^-44."""
    r = np.random.default_rng(seed)
    x = torch.from_numpy(r.integers(-9, 9, (n, 40)) * 2. ** r.integers(-46, -40, (n, 1))).float()
    w = torch.from_numpy(2. ** -r.integers(3, 6, n))
    alone = sum(total(x[i:i + 1], w[i:i + 1]) for i in range(n))
    assert torch.equal(total(x, w), alone)
    assert torch.equal(total(x.flip(0), w.flip(0)), alone)


def test_without_fused_additions_sums_are_as_exact(monkeypatch):
    fused = total(rows(), weights())
    monkeypatch.setattr(exact, "fuses_additions", lambda device: False)
    monkeypatch.setattr(exact, "add_fused", None)
    test_any_grouping_gives_the_same_bits()
    assert (total(rows(), weights()) - fused).abs().max() <= 23


def test_on_a_gpu_rows_are_rounded_alike_whichever_rows_are_beside_them(monkeypatch):
    """Those of a rank that are all small are added at once, and others one after another; the first way runs on CPUs,
    too. Additions of a GPU fuse."""
    x, w = rows().clamp(-99, 99), weights()
    x[3, 7] = 150.
    gpu, alone = torch.device("cuda"), torch.zeros(500, dtype=torch.int64)
    monkeypatch.setattr(exact, "fuses_additions", lambda device: True)
    assert not exact.add_at_once([*x], w, [(alone, [*range(23)])]) and not alone.any()
    exact.add_rows(dict(enumerate(x)), w, alone, exact.choose_chain(gpu))
    first, second = torch.zeros_like(alone), torch.zeros_like(alone)
    exact.add_rows(dict(enumerate(x[:9])), w[:9], first, exact.choose_chain(gpu))
    assert exact.add_at_once([*x[9:]], w[9:], [(second, [*range(14)])])
    assert torch.equal(first + second, alone) and exact.choose_chain(torch.device("cpu")) is exact.add_fused


def test_weights_with_their_last_bits_set():
    w = torch.tensor([1., -.1, .25], dtype=torch.float64)
    found = exact.set_lowest_bit(w)
    assert found[0] == 1 + 2. ** -52 and ((found - w).abs() <= 2. ** -52 * w.abs()).all()
    assert torch.equal(exact.set_lowest_bit(exact.set_lowest_bit(w)), exact.set_lowest_bit(w))


@pytest.mark.parametrize("fused", [True, False])
def test_sums_are_those_of_fractions(monkeypatch, fused):
    """Exact fractions show bit for bit that each contribution is rounded once to a multiple of 2^-44."""
    if not fused:
        monkeypatch.setattr(exact, "fuses_additions", lambda device: False)
    assert exact.SCALE == 2 ** 44 and exact.OFFSET == 384 and exact.SMALL_LIMIT == 100
    x, w = rows(7, 40, torch.float64), weights(7)
    x[2] *= 1e-3
    small = [sum(round(Fraction(last_bit_set(float(w[r]))) * Fraction(float(x[r, i])) * 2 ** 44) for r in range(7))
             for i in range(40) if (x[:, i].abs() < 100).all()]
    assert total(x[:, (x.abs() < 100).all(0)], w).tolist() == small and len(small) > 30


def last_bit_set(value: float) -> float:
    (word,) = struct.unpack("<q", struct.pack("<d", value))
    return struct.unpack("<d", struct.pack("<q", word | 1))[0]


def test_large_values_are_rounded_once_too():
    x = torch.tensor([[100., -100., 99.999, 3e5 + 1 / 3, -499_999.75]], dtype=torch.float64)
    found = total(x, torch.tensor([.5], dtype=torch.float64)).tolist()
    large = [round(Fraction(float(v)) * 2 ** 43) for v in x[0]]
    assert [found[i] for i in (0, 1, 3, 4)] == [large[i] for i in (0, 1, 3, 4)]
    assert found[2] == round(Fraction(last_bit_set(.5)) * Fraction(99.999) * 2 ** 44)


@pytest.mark.parametrize("value, fits", [(499_999., True), (-499_999., True), (5e5, False), (-5e5, False)])
def test_the_range_ends_at_half_a_million(value, fits):
    x = torch.tensor([[1.], [value]])
    if fits:
        assert exact.read_fixed_point(total(x, torch.tensor([0., 1.]).double())).item() == value
        return
    with pytest.raises(exact.NotFinite, match=r"^update has values up to 5e\+05, out of the range of exact sums "
                                              ".500000.; lower train.lr, look") as error:
        total(x, torch.tensor([0., 1.]).double())
    assert error.value.row == 1 and error.value.values.tolist() == [value]


def test_integers_out_of_range_have_a_remedy_of_their_own():
    with pytest.raises(exact.NotFinite, match=r"up to 6e\+05, out of the range of exact sums .500000.; these are "
                       r"integers: let clients send them in a larger unit, or the server gather\(\) them$"):
        total(torch.tensor([[3], [600_000]]), torch.tensor([.5, .5]).double())


def test_a_bad_row_of_a_group_is_named_by_its_place_among_all():
    x = torch.ones(6, 3)
    x[4, 1] = float("inf")
    with pytest.raises(exact.NotFinite) as error:
        total(x, torch.full((6,), .1).double(), torch.tensor([1, 0, 1, 0, 1, 0]), 2)
    assert error.value.row == 4
    assert str(exact.NotFinite(4, x[4], "theta")) == (
        "update of theta has 1 non-finite values of 3; lower train.lr, look at this client's data, or leave such "
        "updates out (faults.bad_update=skip)")


def test_a_row_that_is_bad_in_a_later_block_is_found(monkeypatch):
    monkeypatch.setattr(exact, "NUMBERS_PER_BLOCK", 4)
    for place, value in ((3, float("nan")), (4, 6e5), (9, float("inf"))):
        x = torch.zeros(6, 10)
        x[5, place] = value
        with pytest.raises(exact.NotFinite) as error:
            total(x, torch.ones(6).double() / 6)
        assert error.value.row == 5


@pytest.mark.parametrize("values, most", [([], 0), ([-3., 2.], 3), ([1., 2.5], 2.5), ([float("inf"), 1], float("inf"))])
def test_the_largest_magnitude(values, most):
    assert exact.find_max_magnitude(torch.tensor(values)) == most
    assert np.isnan(exact.find_max_magnitude(torch.tensor([*values, float("nan")])))


def test_totals_as_floats(monkeypatch):
    monkeypatch.setattr(exact, "NUMBERS_PER_BLOCK", 2)
    fixed = torch.tensor([[1, -3, 2 ** 44], [0, 2 ** 45, -2 ** 60]])
    assert exact.read_fixed_point(fixed).tolist() == [[2. ** -44, -3 * 2. ** -44, 1], [0, 2, -65536]]
    single = exact.read_fixed_point(fixed, 3., torch.float32)
    assert single.dtype == torch.float32 and single.tolist() == [[3 * 2. ** -44, -9 * 2. ** -44, 3], [0, 6, -196608]]


def test_small_enough_is_told_by_the_sum_of_squares():
    assert exact.is_surely_small(torch.tensor([60., 79.])) and not exact.is_surely_small(torch.tensor([60., 80.]))
    assert not exact.is_surely_small(torch.tensor([1.]).double())
    assert not exact.is_surely_small(torch.tensor([float("nan")]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_refused(bad):
    total = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(exact.BadWeights, match="the weights of rows have 1 non-finite values of 2"):
        exact.accumulate([torch.ones(4), torch.ones(4)], torch.tensor([.5, bad], dtype=torch.float64), total)
    assert not total.any()
