"""A weighted sum of the rows of a table, whose bits do not depend on how many clients take it at once."""
from __future__ import annotations

import torch

from fedmpi.models.tables import mix_rows


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_a_mix_of_rows_is_their_weighted_sum():
    weights, table = draw(3), draw(3, 1001)
    expected = sum(a * row for a, row in zip(weights.double(), table.double(), strict=True))
    torch.testing.assert_close(mix_rows(weights, table).double(), expected, atol=1e-6, rtol=0)
    # and its gradient
    for found, wanted in zip(torch.autograd.functional.jacobian(mix_rows, (weights, table[:, :2]))[0],
                             table[:, :2].T, strict=True):
        torch.testing.assert_close(found, wanted)


def test_the_bits_of_a_mix_do_not_depend_on_the_clients_beside_it():
    weights, table = draw(33, 8), draw(8, 1001)
    many = torch.func.vmap(mix_rows, (0, None))(weights, table)
    for few in (1, 2, 8):
        assert torch.equal(torch.func.vmap(mix_rows, (0, None))(weights[:few], table), many[:few])
    torch.testing.assert_close(many[7], mix_rows(weights[7], table), atol=1e-5, rtol=0)
