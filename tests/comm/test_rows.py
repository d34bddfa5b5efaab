"""Rows that are wide or have unusual weights, against NumPy on all of them. test_ranks.py has every verb on every
hosting.

Here all rows lie in one array, from which the questions of a verb to the ranks are answered."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from fedmpi.comm import exact, rows
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.comm.orders import MINE, UP, RowRef
from fedmpi.comm.robust import RobustMean
from fedmpi.comm.rows import Rows
from fedmpi.methods.fedavg import FedAvg
from fedmpi.testing.thread_ranks import run_ranks
from tests.federations import Lab, method

# Columns that a gram matrix reads at once.
TILE = 65_536


class Held:
    """Answers orders from an array of rows, and keeps the orders."""

    def __init__(self, x: np.ndarray, robust=None):
        self.x, self.asked = x, []
        self.robust = robust

    def find_clients(self, source):
        return 10 * (source == UP) + np.arange(len(self.x))

    def call(self, order, what, *arrays):
        self.asked.append((order, what.tolist(), *arrays))
        x = self.x[:, what[2]:what[3]]
        if order == OrderPerformer.gather_rows:
            return x
        if order == OrderPerformer.sum_rows:
            return fixed(arrays[0] @ x)
        if order == OrderPerformer.sum_groups:
            weights, groups, k = arrays
            return fixed(np.array([(weights * (groups == j)) @ x for j in range(int(k))]))
        if order == OrderPerformer.measure_distances:
            groups, centres = arrays
            return np.linalg.norm(x - centres[groups], axis=1)
        groups, cuts = arrays
        return np.array([np.full(x.shape[1], 100. * j + cuts[j], np.float32) for j in range(len(cuts))])


def fixed(total) -> torch.Tensor:
    return torch.from_numpy(np.rint(total * exact.SCALE).astype(np.int64))


def handle(x, source=UP, dtype=torch.float32, **how) -> Rows:
    return Rows(Held(np.asarray(x, np.float32), **how), RowRef(source, 4, 0, x.shape[1]), dtype)


def whole_numbers(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 9, (n, d)).astype(np.float32)


@pytest.mark.parametrize("d", [TILE - 1, TILE, TILE + 1, 2 * TILE + 3])
@pytest.mark.parametrize("origin, beside", [(False, False), (True, False), (False, True), (True, True)])
def test_inner_products_of_rows_wider_than_a_tile(d, origin, beside):
    """The rows hold whole numbers, whose sum does not depend on the order."""
    x, off, more = whole_numbers(3, d), whole_numbers(1, d, 1)[0], whole_numbers(2, d, 2)
    v = handle(x)
    found = v.gram(torch.from_numpy(off) if origin else None, torch.from_numpy(more) if beside else None)
    expected = np.concatenate([x, more]) if beside else x
    expected = (expected - off if origin else expected).astype(np.int64)
    assert found.dtype == torch.float64 and np.array_equal(found, expected @ expected.T)
    assert [asked[1][2:] for asked in v.pool.asked] == [[s, min(s + TILE, d)] for s in range(0, d, TILE)]


def test_inner_products_of_a_block_take_its_own_columns(monkeypatch):
    monkeypatch.setattr(rows, "TILE_COLUMNS", 7)
    x, off, more = whole_numbers(3, 40), whole_numbers(1, 20, 1)[0], whole_numbers(1, 20, 2)
    found = handle(x)[5:25].gram(torch.from_numpy(off), torch.from_numpy(more))
    expected = np.concatenate([x[:, 5:25], more]) - off
    assert np.array_equal(found, expected @ expected.T)


def test_blocks_of_rows_that_count():
    x, off, more = whole_numbers(3, 40), whole_numbers(1, 40, 1)[0], whole_numbers(2, 40, 2)
    blocks = [slice(0, 4), slice(9, 31), slice(39, 40)]
    counts = np.r_[0:4, 9:31, 39]
    found = handle(x).gram(torch.from_numpy(off), torch.from_numpy(more), blocks)
    expected = (np.concatenate([x, more]) - off)[:, counts]
    assert np.array_equal(found, expected @ expected.T)
    apart = handle(x).distances([1, 0, 1], torch.from_numpy(more), blocks)
    np.testing.assert_allclose(apart, np.linalg.norm((x - more[[1, 0, 1]])[:, counts], axis=1))
    whole = handle(x).distances([1, 0, 1], torch.from_numpy(more))
    np.testing.assert_allclose(whole, np.linalg.norm(x - more[[1, 0, 1]], axis=1))


def test_bits_of_inner_products_are_those_of_tiles():
    """The width must not change: another one would round sums of long rows differently, and change digests."""
    assert rows.TILE_COLUMNS == TILE


@pytest.mark.parametrize("block, start, stop", [
    (slice(5, 21), 5, 21), (slice(None, 3), 0, 3), (slice(38, None), 38, 40), (slice(-2, None), 38, 40),
    (slice(5, 99), 5, 40), (slice(7, 7), 7, 7)])
def test_a_block_of_rows(block, start, stop):
    v = handle(whole_numbers(2, 40))[block]
    assert v.ref == RowRef(UP, 4, start, stop)
    inner = v[1:3]
    assert inner.ref == RowRef(UP, 4, min(start + 1, stop), min(start + 3, stop))
    assert inner.pool is v.pool and inner.dtype == torch.float32


def test_a_block_of_rows_has_no_step():
    """Every second number would be a copy of the rows; it was the whole block without a word."""
    with pytest.raises(TypeError, match=r"\[::2\]: a slice of rows is one block, without a step"):
        handle(whole_numbers(2, 40))[::2]


def test_whose_rows_they_are():
    x = whole_numbers(3, 4)
    assert handle(x).ids.tolist() == [10, 11, 12] and handle(x, MINE).ids.tolist() == [0, 1, 2]
    assert (UP, MINE) == (0, 1)


@pytest.mark.parametrize("weight", [None, [1, 1, 1], [3, 0, 1], [0, 0, 0], [-2, 1, .5], [1e-12, 1e12, 3.]])
def test_sums_with_any_weights(weight):
    """Exact sums are computed with weights whose total is at most 1, and scaled back to the given ones."""
    x = whole_numbers(3, 6)
    v = handle(x)
    found = v.sum(weight)
    w = np.ones(3) if weight is None else np.array(weight, float)
    assert np.allclose(found, w @ x, rtol=1e-6, atol=1e-6) and found.dtype == torch.float32
    asked = v.pool.asked[0][2]
    assert np.abs(asked).sum() == pytest.approx(1 if w.any() else 0)


def test_means_of_weighted_rows():
    x, w = whole_numbers(4, 6), torch.tensor([3., 1., 0., 4.])
    v = handle(x)
    assert np.allclose(v.mean(), x.mean(0), 1e-6) and np.allclose(v.mean(w), np.average(x, 0, w), 1e-6)
    assert np.allclose(v.combine(torch.stack([w, w + 1])), np.stack([w, w + 1]) @ x, 1e-6)
    assert v.gather().dtype == torch.float32 and np.array_equal(v.gather(), x)
    assert handle(x, dtype=torch.float64).gather().dtype == torch.float64


def test_means_of_groups_keep_the_old_value_of_those_without_weight():
    x, old = whole_numbers(5, 6), torch.arange(24.).reshape(4, 6)
    group, w = np.array([2, 0, 2, 0, 3]), np.array([1., 2, 3, 2, 0])
    v = handle(x)
    found = v.mean_by(group, 4, old)
    expected = np.stack([x[[1, 3]].mean(0), old[1], x[[0, 2]].mean(0), x[4]])
    assert np.allclose(found, expected, 1e-6) and v.pool.asked[0][0] == OrderPerformer.sum_groups
    found = v.mean_by(torch.from_numpy(group), 4, old, w)
    expected = np.stack([x[[1, 3]].mean(0), old[1], (x[0] + 3 * x[2]) / 4, old[3]])
    assert np.allclose(found, expected, 1e-6)


@pytest.mark.parametrize("weight", [
    [3, -1, -1], [-1, -1, -1], [1, -1 + 1e-9, 0], [1e-310, 0, 1e-310], [5e-324, 5e-324, 0], [1e-30, 2e-30, 1e-30]])
def test_means_by_weights_of_both_signs_and_by_tiny_ones(weight):
    """Exact sums have a limited range, which weights that nearly cancel would leave."""
    x, w = whole_numbers(3, 6), np.array(weight, float)
    expected = w / w.sum() @ x
    assert np.allclose(handle(x).mean(w), expected, 1e-6)
    v = handle(x[[0, 1, 1, 2]])
    found = v.mean_by([0, 0, 1, 0], 2, torch.zeros(2, 6), np.insert(w, 2, 1.))
    assert np.allclose(found, np.stack([expected, x[1]]), 1e-6)
    assert np.abs(v.pool.asked[0][2][[0, 1, 3]]).sum() == pytest.approx(1)


@pytest.mark.parametrize("robust, trim, cuts", [("median", .1, [1, 0, 0]), ("trimmed_mean", .4, [1, 0, 0]),
                                                ("trimmed_mean", .1, [1, 0, 0]), ("trimmed_mean", 0., [0, 0, 0])])
def test_robust_means_leave_out_as_many_as_each_group_has(robust, trim, cuts):
    """The groups have 4, 1 and no members; weights have no effect."""
    x, old = whole_numbers(5, 6), torch.full((3, 6), 7.)
    v = handle(x, robust=RobustMean(robust, trim))
    group = np.array([0, 0, 1, 0, 0])
    found = v.mean_by(group, 3, old, np.arange(5.))
    order, what, groups, asked = v.pool.asked[0]
    assert order == OrderPerformer.trim_groups and groups.tolist() == group.tolist() and asked.tolist() == cuts
    assert found[:, 0].tolist() == [cuts[0], 100, 7] and found.dtype == torch.float32
    v.pool.asked.clear()
    assert v.mean(np.arange(5.)).shape == (6,)
    cut = {"median": 2}.get(robust, {.4: 2, .1: 1, 0.: 0}[trim])
    assert [a.tolist() for a in v.pool.asked[0][2:]] == [[0] * 5, [cut]]
    assert not handle(x, MINE, robust=RobustMean(robust, .1)).robust and not handle(x).robust


def test_what_is_addressed_to_participants():
    v = handle(whole_numbers(3, 40))
    one, two = v.mix(np.eye(3)), v[5:9].mix(torch.arange(18.).reshape(3, 2, 3))
    assert one.shape == (40,) and one.coefficients.shape == (3, 1, 3) and one.rows is v
    assert two.shape == (2, 4) and two.coefficients.shape == (3, 2, 3)
    assert two.coefficients[1, 1].tolist() == [9, 10, 11]


def test_sums_in_single_precision_are_scaled_back():
    v = handle(whole_numbers(2, 3))
    found = v._read(torch.tensor([.5, .25]), 4.)
    assert found.tolist() == [2, 1] and found.dtype == torch.float32
    assert handle(whole_numbers(2, 3))._read(fixed(np.array([.5, -.25])), 4.).tolist() == [2, -1]


def test_handles_of_all_fields():
    class Sent(NamedTuple):
        w: torch.Tensor
        n: torch.Tensor
    w, n = rows.make_rows("pool", MINE, Sent(torch.zeros(2, 3), torch.zeros((), dtype=torch.float64)))
    assert (w.pool, w.ref, w.dtype) == ("pool", RowRef(MINE, 0, 0, 6), torch.float32)
    assert (n.ref, n.dtype) == (RowRef(MINE, 1, 0, 1), torch.float64)


@pytest.mark.parametrize("reduce", ["exact", "float32"])
def test_a_sum_is_read_as_the_ranks_added_it_up(mlp, federation, reduce):
    """The server code does not use the setting `server.reduce`; the type of the sum says how to read it."""
    lab = Lab(method("fedavg", mlp), federation, reduce=reduce)
    who = lab.train(0)
    found = rows.make_rows(lab.pool, UP, lab.up).w.mean(who.sizes)
    expected = np.average([lab.group.ups[client].w.numpy() for client in who.ids], 0, who.sizes)
    assert np.allclose(found, expected, atol=1e-6) and np.linalg.norm(expected) > 1


class Sent(NamedTuple):
    """Numbers among which are some that single precision does not hold."""
    ones: torch.Tensor
    big: torch.Tensor
    third: torch.Tensor


@dataclass(frozen=True)
class Counts(FedAvg):
    def client(self, shared, mine, data):
        ones = torch.full((2,), 1) + torch.tensor(data.client % 2)
        return mine, Sent(ones, torch.tensor([2 ** 40 + 1]), torch.tensor([1 / 3], dtype=torch.float64))


@pytest.mark.parametrize("ranks", [1, 3])
def test_fields_of_whole_numbers_and_of_double_precision(mlp, federation, ranks):
    """With three ranks one hosts no client."""
    def work(world):
        homes = 2 * (np.arange(len(federation.sizes)) % 2) % ranks
        lab = Lab(Counts().with_model(mlp), federation, world=world, homes=homes)
        if world.rank:
            return lab.pool.serve()
        ids = lab.train(0).ids
        up, odd = lab.rows(), ids % 2
        whole = len(ids) + odd.sum()
        assert up.ones.sum().tolist() == [whole, whole] and up.ones.sum(np.full(len(ids), 3)).tolist()[0] == 3 * whole
        assert up.ones.mean().tolist() == pytest.approx([1 + odd.mean()] * 2) and up.ones.mean().dtype == torch.float64
        assert up.ones.mean_by(odd, 2, torch.zeros(2, 2)).tolist() == [pytest.approx([1 + j] * 2) for j in range(2)]
        assert up.ones.gather().dtype == torch.int64 and up.ones.gather()[:, 0].tolist() == (1 + odd).tolist()
        assert up.big.gather().tolist() == [[2 ** 40 + 1]] * len(ids) and up.third.gather().unique().item() == 1 / 3
        lab.pool.call(OrderPerformer.stop, np.int64(0))
        return None
    run_ranks(ranks, work)


@pytest.mark.parametrize("weights", [[1, np.nan, 0], [np.inf, 1, 1], [0, 0, 0]])
def test_weights_that_are_no_numbers_are_refused_with_the_field(weights):
    """A mean by weights that are all 0 has weights 0 / 0."""
    v = replace(handle(whole_numbers(3, 4)), name="theta")
    group, bad = np.zeros(3, np.int64), np.array(weights, float)
    with pytest.raises(exact.BadWeights, match="the weights of rows of theta have . non-finite values of 3"):
        v.mean(bad)
    if bad.any():
        for ask in (lambda: v.sum(bad), lambda: v.mean_by(group, 1, torch.zeros(1, 4), bad),
                    lambda: v.mix(np.tile(bad, (3, 1))), lambda: v.combine(bad[None])):
            with pytest.raises(exact.BadWeights):
                ask()
    assert not v.pool.asked
