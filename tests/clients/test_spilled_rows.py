"""Sums over what clients keep: rows in the scratch file are added piece by piece, with the same bits."""
from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from fedmpi.clients import partial_sums
from fedmpi.clients.partial_sums import PartialSums
from fedmpi.clients.state_store import StateStore
from fedmpi.comm import exact
from fedmpi.comm.exact import NotFinite
from fedmpi.comm.orders import MINE, RowRef
from fedmpi.context import RankContext

CLIENTS = [1, 3, 4, 6, 7, 11]
W = RowRef(MINE, 1, 2, 5)


class Mine(NamedTuple):
    n: torch.Tensor
    w: torch.Tensor


def sums(reduce: str, memory: float, bad: int | None = None) -> PartialSums:
    store = StateStore(Mine(torch.tensor(1), torch.zeros(2, 4)), memory)
    for client in CLIENTS:
        w = torch.randn(2, 4, generator=torch.Generator().manual_seed(client))
        store.write(client, Mine(torch.tensor(client), w / 0 if client == bad else w))
    return PartialSums(SimpleNamespace(store=store, ups={}, clients=CLIENTS, device=torch.device("cpu"),
                                       context=RankContext(), config=SimpleNamespace(
                                           server=SimpleNamespace(reduce=reduce))))


@pytest.fixture(params=[1, 7 * 12, 2 * 12], ids=lambda size: f"{size} bytes")
def pieces(request, monkeypatch):
    """How many rows of three numbers are added at once."""
    seen, accumulate = [], exact.accumulate
    monkeypatch.setattr(partial_sums, "PIECE_BYTES", request.param)
    monkeypatch.setattr(exact, "accumulate", lambda rows, *more: seen.append(len(rows)) or accumulate(rows, *more))
    yield seen
    assert set(seen) <= {max(1, request.param // 12), len(CLIENTS), len(CLIENTS) - 1, 1}


@pytest.mark.parametrize("reduce", ["exact", "float32"])
@pytest.mark.parametrize("groups", [None, np.array([1, 0, 1, 1, 2, 0])])
def test_sums_are_those_of_rows_in_memory(pieces, reduce, groups):
    weights = np.array([.1, .2, 0, .3, .15, .25])
    whole, spilled = (sums(reduce, memory) for memory in (float("inf"), 40))
    expected, found = (each.sum_weighted(W, weights, groups, 3) for each in (whole, spilled))
    assert torch.equal(found, expected) and found.dtype == expected.dtype
    if reduce == "exact":
        assert pieces[0] == 5 and max(pieces[1:]) <= max(1, partial_sums.PIECE_BYTES // 12)


def test_rows_and_distances_are_those_of_rows_in_memory():
    whole, spilled = (sums("exact", memory) for memory in (float("inf"), 40))
    np.testing.assert_array_equal(spilled.read_rows(W), whole.read_rows(W))
    where = W, np.arange(6) % 2, np.ones((2, 3))
    np.testing.assert_array_equal(spilled.measure_distances(*where), whole.measure_distances(*where))


@pytest.mark.parametrize("reduce", ["exact", "float32"])
def test_a_client_with_a_bad_row_is_named(pieces, reduce):
    found = sums(reduce, 40, bad=7)
    with pytest.raises(NotFinite, match="^update of w has 3 non-finite values of 3"):
        found.sum_weighted(W, np.full(6, .1))
    assert found.hosted.context.client == 7
