"""Sums by the compiled kernel: the same bits as PyTorch's, taken only where it can be had, is worth it and fuses."""
from __future__ import annotations

import sys

import pytest
import torch

from fedmpi.comm import chains, exact
from tests.comm.test_exact import rows, total, weights

pytest.importorskip("numba")
if not exact.fuses_additions(torch.device("cpu")):
    pytest.skip("this processor does not fuse", allow_module_level=True)


@pytest.fixture
def worth(monkeypatch):
    """Every sum is worth the kernel; return how often it was used."""
    used, chain = [], chains.compiled()
    assert chain
    monkeypatch.setattr(chains, "MIN_CONTRIBUTIONS", 0)
    monkeypatch.setattr(chains, "compiled", lambda: lambda *arguments: used.append(1) or chain(*arguments))
    return used


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 23])
@pytest.mark.parametrize("d", [1, 7, 500, 2 * exact.NUMBERS_PER_BLOCK + 3])
def test_the_same_bits_as_without(worth, monkeypatch, n, d):
    x, w = rows(n, d), weights(n)
    found = total(x, w)
    assert len(worth) == -(-n // chains.ROWS_PER_CALL) * -(-d // exact.NUMBERS_PER_BLOCK)
    monkeypatch.setattr(chains, "kernel", lambda rows: None)
    assert torch.equal(total(x, w), found)


def test_large_values_are_left_to_the_other_way(worth, monkeypatch):
    x, w = rows(), weights()
    x[::3, 7] = 2e4
    found = total(x, w)
    assert worth
    monkeypatch.setattr(chains, "kernel", lambda rows: None)
    assert torch.equal(total(x, w), found)


@pytest.mark.parametrize("place", [0, 3, 4, 22])
def test_values_that_are_not_finite_name_the_row(worth, place):
    x = rows()
    x[place, 3] = float("nan")
    with pytest.raises(exact.NotFinite) as error:
        total(x, weights())
    assert error.value.row == place


def test_rows_of_other_types_and_layouts_are_not_given_to_it(worth):
    total(rows(dtype=torch.float64), weights())
    total(torch.ones(23, 1).expand(23, 500), weights())
    assert not worth


def test_a_small_sum_does_not_compile_it(monkeypatch):
    def never():
        raise AssertionError("compiled")
    monkeypatch.setattr(chains, "compiled", never)
    assert not total(torch.zeros(23, 500), weights()).any()


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError])
def test_without_a_numba_that_works_there_is_none(monkeypatch, error):
    """No package, no library of its own, a processor that it does not know."""
    def broken(*signature, **ways):
        raise error("as it may")
    monkeypatch.setattr("numba.njit", broken)
    assert chains.compiled.__wrapped__() is None
    monkeypatch.setitem(sys.modules, "numba", None)
    assert chains.compiled.__wrapped__() is None


def test_the_groups_of_a_sum_count_together(worth, monkeypatch):
    monkeypatch.setattr(chains, "MIN_CONTRIBUTIONS", 23 * 500)
    total(rows(), weights(), torch.arange(23) % 5, 5)
    assert worth


def test_one_that_does_not_fuse_is_refused(monkeypatch):
    import numba
    compile_it = numba.njit
    monkeypatch.setattr(numba, "njit", lambda *signature, **ways: compile_it(*signature))
    assert chains.compiled.__wrapped__() is None
