"""Plain SGD for networks that begin with a table (of word vectors): a step reads and moves only its samples' rows.

Legend: v rows of e numbers, b batch, l positions."""
from __future__ import annotations

import torch
from torch import Tensor

from fedmpi.engines.proximal import Late, approach
from fedmpi.models.flat import cross_entropy, inside
from fedmpi.models.precision import forward


def sparse(net, w: Tensor, only: slice | None, pull, momentum, clip) -> bool:
    """Say whether `descend` below can take these steps: velocities and clipping concern all rows in every step, and on
    a GPU the whole table costs little and adds up in one order."""
    table = getattr(net, "table", None)
    if table is None or net.still or w.is_cuda or momentum or clip or not (only is None or inside(table, only)):
        return False
    return all(block is None or inside(table, block) or are_disjoint(table, block) for _, _, block in pull)


def descend(batches, net, w: Tensor, lr: float, only: slice | None, pull) -> Tensor:
    """Return the weights after SGD over batches of (x, y), x (b, l) the numbers of rows."""
    table, rest, padding = net.table, net.behind_table, net.lookup.padding_idx
    rows = w[table].clone().view(-1, net.lookup.embedding_dim)
    work = rest.bind(around(w, table, None))
    rest.module.train()
    leaves = [rest.leaf(i) for i in rest.chosen(only and shifted(only, table))]
    moving = [leaf.detach() for leaf in leaves]
    late = Late(rows, lr, [(on_table(centre, table, block).view(rows.shape), strength)
                           for centre, strength, block in pull if block is None or inside(table, block)])
    pulls = [(work[shifted(block, table)], around(centre, table, block), lr * strength)
             for centre, strength, block in pull]
    total, step = torch.zeros_like(rows), 0
    for step, (x, y) in enumerate(batches, 1):
        ids = x.flatten().long()
        late.catch_up(ids, step - 1)
        z = rows[ids].view(*x.shape, -1).requires_grad_()
        dz, *grads = torch.autograd.grad(cross_entropy(forward(rest.module, z), y), [z, *leaves])
        if padding is not None:
            dz.masked_fill_((x == padding).unsqueeze(-1), 0)
        approach(pulls)
        if moving:
            torch._foreach_add_(moving, grads, alpha=-lr)
        late.catch_up(ids, step)
        # a row that is used often: its small gradients are added up first, or they would be lost beside its values
        total.index_add_(0, ids, dz.flatten(0, -2))
        rows[ids] = rows[ids].sub_(total[ids], alpha=lr)
        total[ids] = 0
    late.catch_up(slice(None), step)
    return torch.cat([work[:table.start], rows.flatten(), work[table.start:]])


def are_disjoint(a: slice, b: slice) -> bool:
    return a.stop <= b.start or b.stop <= a.start


def shifted(block: slice | None, table: slice) -> slice:
    """Return where a block of w lies in a vector without the table."""
    if block is None:
        return slice(None)
    cut = table.stop - table.start
    start, stop = (p if p <= table.start else p - cut for p in (block.start, block.stop))
    return slice(start, stop)


def around(v: Tensor, table: slice, block: slice | None) -> Tensor:
    """Return v, the values of a block of w, without those of the table."""
    at = 0 if block is None else block.start
    if block is not None and are_disjoint(table, block):
        return v
    return torch.cat([v[:table.start - at], v[table.stop - at:]])


def on_table(v: Tensor, table: slice, block: slice | None) -> Tensor:
    """Return the table's part of v, the values of a block of w."""
    at = 0 if block is None else block.start
    return v[table.start - at:table.stop - at]
