"""Tables with a row for each cluster or client, as methods index them."""
from __future__ import annotations

from torch import Tensor


def table_row(table: Tensor, i: Tensor) -> Tensor:
    """Return table[i] for a tensor i without dimensions (a client's cluster, say; -1: the last row).

    On a GPU, i stays there: as an index it would be looked at, and the GPU waited for."""
    return table.index_select(0, i.remainder(len(table))[None])[0] if table.is_cuda else table[i]
