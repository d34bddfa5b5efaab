"""Principal components from inner products, cosines, and their cost."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity

from fedmpi.clustering.low_rank import compute_cosines, count_multiply_adds, find_principal_weights, scale_to_unit_rows


@pytest.fixture
def rows():
    return 3 + torch.randn(7, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_components_are_those_of_the_centred_rows(rows):
    found = find_principal_weights(rows @ rows.T, 5) @ rows.numpy()
    expected = PCA(5, svd_solver="full").fit(rows.numpy()).components_
    np.testing.assert_allclose(np.abs((found * expected).sum(1)), 1, atol=1e-9)
    np.testing.assert_allclose(found @ found.T, np.eye(5), atol=1e-9)


def test_directions_in_which_nothing_varies_are_0(rows):
    found = find_principal_weights(rows @ rows.T, 7) @ rows.numpy()
    assert not found[6].any() and found[:6].any(1).all()
    assert not find_principal_weights(torch.ones(3, 3), 2).any()


def test_a_direction_counts_if_the_rows_vary_in_it_by_more_than_rounding_errors():
    for size, real in ((1e-6, True), (1e-7, False)):
        rows = torch.tensor([[1., 0.], [-1., 0.], [0., size], [0., -size]]).double()
        assert find_principal_weights(rows @ rows.T, 2)[1].any() == real


def test_fewer_rows_than_components(rows):
    few, whole = rows[:4] @ rows[:4].T, find_principal_weights(rows[:4] @ rows[:4].T, 4)
    np.testing.assert_array_equal(find_principal_weights(few, 6), np.concatenate([whole, np.zeros((2, 4))]))


def test_the_signs_are_fixed(rows):
    weights = find_principal_weights(rows @ rows.T, 5)
    assert (weights.max(1) > -weights.min(1)).all()


def test_cosines(rows):
    np.testing.assert_allclose(compute_cosines(rows, rows[:3]), cosine_similarity(rows, rows[:3]), atol=1e-12)
    assert not compute_cosines(torch.zeros(2, 3), torch.ones(1, 3)).any()
    assert not scale_to_unit_rows(torch.zeros(1, 3)).any()


def test_the_cost_is_in_proportion_to_the_length():
    """The server computes n k inner products and n + k norms."""
    assert count_multiply_adds(100, 10, 50) == (1000 + 110) * 50
    assert count_multiply_adds(1000, 100, 61_706) * 50 == count_multiply_adds(1000, 100, 50) * 61_706
