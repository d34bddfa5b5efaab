"""SGD for networks that begin with an embedding table: a step reads and moves only the rows of its samples.

Legend: v rows of e numbers, b batch, l positions."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeGuard

import torch
from torch import Tensor

from fedmpi.engines.gradients import Loss
from fedmpi.engines.step import PullTerm, Step, StepOptions
from fedmpi.models.flat import Net
from fedmpi.models.losses import compute_loss
from fedmpi.models.precision import run_forward
from fedmpi.models.slices import is_inside
from fedmpi.torch_compat import compute_gradients


def can_descend_sparsely(net: Net | Loss, w: Tensor, only: slice | None, options: StepOptions) -> TypeGuard[Net]:
    """Say whether `descend_sparsely` can take these steps; if so, `net` is a Net with a table. It does not on a GPU,
    where moving the whole table costs little and adds up in one order."""
    if not isinstance(net, Net) or net.table is None or net.buffers or w.is_cuda or not options.allows_late_rows:
        return False
    table = net.table
    if only is not None and not is_inside(table, only):
        return False
    return all(pull.block is None or is_inside(table, pull.block) or are_disjoint(table, pull.block)
               for pull in options.pull)


def descend_sparsely(batches: Iterable[tuple[Tensor, Tensor]], net: Net, w: Tensor, only: slice | None,
                     options: StepOptions, smoothing: float = 0.) -> Tensor:
    """Return the weights (d,) after SGD over batches of (x, y), x (b, l) the numbers of rows.

    Args:
        smoothing: of the labels, see losses.compute_loss."""
    # `can_descend_sparsely` has seen it.
    assert net.table is not None
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
        PullTerm(cut_table(centre, table, block).view(rows.shape), strength, None)
        for centre, strength, block in options.pull if block is None or is_inside(table, block)]))
    step = Step(work, views, replace(options, pull=[
        PullTerm(cut_out_table(centre, table, block), strength, shift_block(block, table))
        for centre, strength, block in options.pull]))
    for x, y in batches:
        ids = x.flatten().long()
        z = sparse.read(ids).view(*x.shape, -1).requires_grad_()
        loss = compute_loss(run_forward(rest.module, z), y, smoothing=smoothing)
        dz, *gradients = compute_gradients(loss, [z, *leaves])
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


class SparseRows:
    """Takes the steps of step.py on a table (v, e) of which each batch reads a few rows: only those are moved.

    The pulls on the other rows are late: a row takes them when it is next read. Several pulls are one, to the mean of
    their centres; m steps of it leave (1 - lr * strength)^m of the distance.

    Args:
        rows: the table (v, e); each step moves it.
        options: of the steps; they must allow late rows. Each pull's centre is (v, e)."""

    def __init__(self, rows: Tensor, options: StepOptions):
        self.rows, self.lr, self.steps = rows, options.lr, 0
        strengths = [float(pull.strength) for pull in options.pull]
        total = sum(strengths)
        if len(strengths) == 1:
            self._centre = options.pull[0].centre
        elif total:
            self._centre = sum(p.centre * (s / total) for p, s in zip(options.pull, strengths, strict=True))
        self._left = 1 - self.lr * total
        # the steps that each row has taken
        self._taken = torch.zeros(len(rows), device=rows.device)
        self._sums = torch.zeros_like(rows)

    def read(self, ids: Tensor) -> Tensor:
        """Return the values (n, e) of rows that a batch reads; ids (n,) may name a row twice."""
        self._catch_up(ids)
        return self.rows[ids]

    def take(self, ids: Tensor, gradients: Tensor) -> None:
        """Take one step with gradients (n, e) by the rows `ids` (n,), those of its batch."""
        self.steps += 1
        self._catch_up(ids)
        # a row that is used often: its small gradients are added up first, or they would be lost beside its values
        self._sums.index_add_(0, ids, gradients)
        self.rows[ids] = self.rows[ids].sub_(self._sums[ids], alpha=self.lr)
        self._sums[ids] = 0

    def finish(self) -> Tensor:
        """Return the table when all rows have taken all pulls."""
        self._catch_up(slice(None))
        return self.rows

    def _catch_up(self, ids: Tensor | slice) -> None:
        """Bring rows to where the pulls of all steps so far take them."""
        if self._left == 1:
            return
        gone = 1 - self._left ** (self.steps - self._taken[ids])
        self.rows[ids] = self.rows[ids].lerp(self._centre[ids], gone[:, None])
        self._taken[ids] = float(self.steps)
