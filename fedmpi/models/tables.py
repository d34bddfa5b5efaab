"""Choose a row of a table that has one for each cluster or client, and read it."""
from __future__ import annotations

import torch
from torch import Tensor


def table_row(table: Tensor, i: Tensor) -> Tensor:
    """Return table[i] for a tensor i without dimensions, such as a client's cluster; -1 is the last row.

    On a GPU, i stays there. As an index its value would be read, for which the host would wait."""
    return table.index_select(0, i.remainder(len(table))[None])[0] if table.is_cuda else table[i]


def find_lowest(losses: Tensor) -> Tensor:
    """Return the position of the lowest loss, (), the first of equal ones. A model whose loss is NaN is chosen
    by nobody: argmin alone would take it for the lowest."""
    return losses.nan_to_num(torch.inf, torch.inf, -torch.inf).argmin()
