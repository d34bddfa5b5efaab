"""Medians and trimmed means: how many values each group leaves out, and the same bits on any number of ranks."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.comm import robust
from fedmpi.comm.robust import RobustMean, trim_mean, trim_mean_by
from fedmpi.comm.transport import Solo
from tests.comm.together import together


# The cuts are those of groups with 0, 1, 2, ... members.
@pytest.mark.parametrize("how, trim, cuts", [
    ("median", .1, [0, 0, 0, 1, 1, 2, 2, 3, 3]),
    ("trimmed_mean", .1, [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2]),      # a tenth of 10 is 1, not 2
    ("trimmed_mean", .25, [0, 0, 0, 1, 1, 2, 2, 2, 2, 3]), ("trimmed_mean", .4, [0, 0, 0, 1, 1, 2, 2, 3, 3, 4]),
    ("trimmed_mean", 0., [0] * 5), ("trimmed_mean", .3, [0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 4])])
def test_how_many_values_are_left_out_at_either_end(how, trim, cuts):
    assert [RobustMean(how, trim).count_values_left_out(members) for members in range(len(cuts))] == cuts


def test_the_middle_of_columns():
    x = torch.tensor([[3., 1e9], [1., -1e9], [2., 5.], [7., 6.], [-9., 9.]])
    assert trim_mean(x, 0).tolist() == [.8000000119209290, 4.] and trim_mean(x, 1).tolist() == [2., 6.66666650772094727]
    assert trim_mean(x, 2).tolist() == [2., 6.] and trim_mean(x, 2).dtype == torch.float32
    # the mean of the two middle values
    assert trim_mean(x[:4], 1).tolist() == [2.5, 5.5]


# With two columns at once the last one is alone, and some ranks get none.
N, D = 11, 23
# The groups have five, five, no and one members.
GROUPS = np.array([0, 1, 0, 0, 3, 1, 0, 0, 1, 1, 1])
CUTS = np.array([2, 1, 0, 0])


def expected(x: np.ndarray) -> np.ndarray:
    out = np.zeros((4, D))
    for j, c in enumerate(CUTS):
        members = np.sort(x[j == GROUPS].astype(np.float64), 0)
        if len(members):
            out[j] = members[c:len(members) - c].mean(0)
    return out


def data() -> np.ndarray:
    x = np.random.default_rng(3).standard_normal((N, D)).astype(np.float32)
    # This value does not move a median.
    x[0] = 1e6
    return x


@pytest.mark.parametrize("size", [1, 2, 4])
# These are a column, two columns, and all columns at once.
@pytest.mark.parametrize("at_once", [1, 24, 1 << 24])
def test_each_group_leaves_out_its_own_number(monkeypatch, size, at_once):
    monkeypatch.setattr(robust, "NUMBERS_AT_ONCE", at_once)
    x, ranks, asked = data(), np.random.default_rng(5).integers(0, size, N), []

    def act(world):
        def here(start, stop):
            if world.rank == 0:
                asked.append((start, stop))
            return x[ranks == world.rank, start:stop]
        return trim_mean_by(world, here, D, ranks, GROUPS, CUTS)
    found, *others = [act(Solo())] if size == 1 else together(size, act)
    assert found.dtype == np.float32 and found.shape == (4, D) and others == [None] * (size - 1)
    assert np.allclose(found, expected(x), rtol=1e-6, atol=1e-7) and not found[2].any()
    alone = trim_mean_by(Solo(), lambda start, stop: x[:, start:stop], D, np.zeros(N, int), GROUPS, CUTS)
    assert found.tobytes() == alone.tobytes()
    # Rows may be empty.
    assert trim_mean_by(Solo(), lambda start, stop: x[:, :0], 0, np.zeros(N, int), GROUPS, CUTS).shape == (4, 0)
    width = max(1, at_once // N)
    assert asked == [(s, min(D, s + width)) for s in range(0, D, width)]
