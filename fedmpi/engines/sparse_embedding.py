"""SGD for networks that begin with an embedding table: a step reads and moves only the rows of its samples.

Legend: v rows of e numbers, b batch, l positions."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from fedmpi.engines.gradients import Loss
from fedmpi.engines.step import Pull, SparseRows, Step, StepOptions
from fedmpi.models.flat import Net, is_inside
from fedmpi.models.losses import cross_entropy
from fedmpi.models.precision import run_forward


def can_descend_sparsely(net: Net | Loss, w: Tensor, only: slice | None, options: StepOptions) -> bool:
    """Say whether `descend` can take these steps. It does not on a GPU, where moving the whole table costs little and
    adds up in one order."""
    if not isinstance(net, Net) or net.table is None or net.buffers or w.is_cuda or not options.allows_late_rows:
        return False
    table = net.table
    if only is not None and not is_inside(table, only):
        return False
    return all(pull.block is None or is_inside(table, pull.block) or are_disjoint(table, pull.block)
               for pull in options.pull)


def descend_sparsely(batches: Iterable[tuple[Tensor, Tensor]], net: Net, w: Tensor, only: slice | None,
            options: StepOptions) -> Tensor:
    """Return the weights (d,) after SGD over batches of (x, y), x (b, l) the numbers of rows."""
    assert net.table is not None      # as can_descend saw
    table, rest, padding = net.table, net.behind_table, net.lookup.padding_idx
    chosen = rest.moving(only and shift_block(only, table))
    work = rest.bind(cut_out_table(w, table, None))
    leaves = [rest.parameter(i) for i in chosen]
    rest.module.train()

    def views(flat: Tensor) -> list[Tensor]:
        parts = rest.split(flat)
        return [parts[i] for i in chosen]
    rows = w[table].clone().view(-1, net.lookup.embedding_dim)
    sparse = SparseRows(rows, replace(options, pull=[
        Pull(cut_table(centre, table, block).view(rows.shape), strength, None)
        for centre, strength, block in options.pull if block is None or is_inside(table, block)]))
    step = Step(work, views, replace(options, pull=[
        Pull(cut_out_table(centre, table, block), strength, shift_block(block, table))
        for centre, strength, block in options.pull]))
    for x, y in batches:
        ids = x.flatten().long()
        z = sparse.read(ids).view(*x.shape, -1).requires_grad_()
        dz, *gradients = torch.autograd.grad(cross_entropy(run_forward(rest.module, z), y), [z, *leaves])
        if padding is not None:
            dz.masked_fill_((x == padding).unsqueeze(-1), 0)
        step.take(gradients)
        sparse.take(ids, dz.flatten(0, -2))
    return torch.cat([work[:table.start], sparse.finish().flatten(), work[table.start:]])


def are_disjoint(a: slice, b: slice) -> bool:
    """Say whether two blocks have no entry in common."""
    return a.stop <= b.start or b.stop <= a.start


def shift_block(block: slice | None, table: slice) -> slice:
    """Return the slice that a block of w has in the vector without the table."""
    if block is None:
        return slice(None)
    cut = table.stop - table.start
    start, stop = (p if p <= table.start else p - cut for p in (block.start, block.stop))
    return slice(start, stop)


def cut_out_table(v: Tensor, table: slice, block: slice | None) -> Tensor:
    """Return v, the values of a block of w, without the table's values."""
    at = 0 if block is None else block.start
    if block is not None and are_disjoint(table, block):
        return v
    return torch.cat([v[:table.start - at], v[table.stop - at:]])


def cut_table(v: Tensor, table: slice, block: slice | None) -> Tensor:
    """Return the table's part of v, the values of a block of w."""
    at = 0 if block is None else block.start
    return v[table.start - at:table.stop - at]
