"""Choose a row of a table that has one for each cluster or client, and read it."""
from __future__ import annotations

import torch
from torch import Tensor


def table_row(table: Tensor, i: Tensor) -> Tensor:
    """Return table[i] for a tensor i without dimensions, such as a client's cluster; -1 is the last row.

    On a GPU, i stays there. As an index its value would be read, for which the host would wait."""
    return table.index_select(0, i.remainder(len(table))[None])[0] if table.is_cuda else table[i]


def average_used_rows(table: Tensor, start: Tensor) -> Tensor:
    """Return the mean of the rows of a table (k, d) that have changed since all were `start` (d,); of all if none has.

    So clusters that never had a member have no part in it."""
    used = (table != start).any(1)
    mean = (table * (used / used.sum().clamp(min=1))[:, None]).sum(0)
    # Where all rows count, the plain mean: its last bits may be others.
    return torch.where(used.all() | ~used.any(), table.mean(0), mean)


def find_lowest(losses: Tensor) -> Tensor:
    """Return the position of the lowest loss, (), the first of equal ones. A model whose loss is NaN is chosen
    by nobody: argmin alone would take it for the lowest."""
    return losses.nan_to_num(torch.inf, torch.inf, -torch.inf).argmin()
