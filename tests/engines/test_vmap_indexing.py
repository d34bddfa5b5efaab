"""Indexing by tensors that vmap batches, also in the way that old PyTorch needs."""
from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

from fedmpi.engines import vmap_indexing


@pytest.mark.parametrize("context", [vmap_indexing.allow_indexing, vmap_indexing.IndexByList])
def test_a_table_by_each_client_s_own_number(context):
    tables, at = torch.randn(2, 5, 3), torch.tensor([3, 0, -1, 3])

    def one(i):
        with context():
            losses = tables[0][i].square().sum() + grad(lambda w: (w * tables[1, 2][0]).sum())(tables[1][i])
            return losses, tables[0][i.clamp(min=0)], tables[0][tables[0, :, 0].argmin() + 0 * i]
    sums, rows, least = vmap(one)(at)
    assert torch.equal(rows, tables[0][at.clamp(min=0)])
    torch.testing.assert_close(sums, tables[0][at].square().sum(1)[:, None] + tables[1, 2, 0].expand(4, 3))
    assert (least == tables[0][tables[0, :, 0].argmin()]).all()


def test_masks_and_slices_stay_what_they_are():
    x = torch.arange(6.).reshape(2, 3)
    with vmap_indexing.IndexByList():
        assert x[torch.tensor(True)].shape == (1, 2, 3) and x[1:].shape == (1, 3) and x[1, 2] == 5
        assert torch.equal(x[:, torch.tensor([0, 2])], x[:, ::2])
