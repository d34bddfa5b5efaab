"""Choose a row of a table that has one for each cluster or client, and read it, or mix all rows."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedmpi.models.slices import zero_statistics
from fedmpi.torch_compat import count_transforms


def table_row(table: Tensor, i: Tensor) -> Tensor:
    """Return table[i] for a tensor i without dimensions, such as a client's cluster; -1 is the last row.

    On a GPU, i stays there. As an index its value would be read, for which the host would wait."""
    return table.index_select(0, i.remainder(len(table))[None])[0] if table.is_cuda else table[i]


def table_row_or_mean(table: Tensor, i: Tensor, list_used: Callable[[], Tensor], any_client: Callable[[Tensor], bool]
                      ) -> Tensor:
    """Return table[i] as `table_row`; for a client without a cluster, whose i is -1, the mean of the used rows.

    Args:
        list_used: returns which rows are used, see `list_used_rows`.
        any_client: that of the client's data."""
    own = table_row(table, i)
    # The mean takes ten times as long, so it is left out where nobody needs it. On a GPU the host would wait to know.
    if not (own.is_cuda or any_client(i < 0)):
        return own
    return torch.where(i < 0, average_used_rows(table, list_used()), own)


def mix_rows(weights: Tensor, table: Tensor) -> Tensor:
    """Return the weighted sum (d,) of the rows of a table (k, d), such as the models of clusters; `weights` is (k,).

    A matrix product reads the table once and writes nothing of its size, so with its gradient it takes a fifth of the
    time. For many clients at once its bits would depend on how many they are."""
    if count_transforms():
        return (weights[:, None] * table).sum(0)
    return table.T @ weights


def list_used_rows(table: Tensor, start: Tensor, buffers: list[slice]) -> Tensor:
    """Return which rows of a table (k, d), such as the models of clusters, have changed since all were `start` (d,), as
    (k,) bool. Running statistics, at `buffers`, do not count: where they stay with clients, the table has none."""
    return zero_statistics(table != start, buffers).any(1)


def average_used_rows(table: Tensor, used: Tensor) -> Tensor:
    """Return the mean of the used rows of a table (k, d); of all, if none is used."""
    counted = used | ~used.any()
    return (table * counted[:, None]).sum(0) / counted.sum()


def find_nearest_used(apart: Tensor, used: Tensor) -> Tensor:
    """Return the position of the smallest distance among the used rows, (); among all, if none is used."""
    return torch.where(used | ~used.any(), apart, torch.inf).argmin()


def find_lowest(losses: Tensor) -> Tensor:
    """Return the position of the lowest loss, (), the first of equal ones. A model whose loss is NaN is chosen
    by nobody: argmin alone would take it for the lowest."""
    return losses.nan_to_num(torch.inf, torch.inf, -torch.inf).argmin()
