"""Count what a client's round would compute, without computing it: a method is run on a single blank sample that counts
as n, and no step is taken."""
from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fedmpi.clients.loop import LoopData
from fedmpi.clients.plan import Local
from fedmpi.models.flat import Net


class Work(NamedTuple):
    trained: int      # samples that went forward and backward
    passed: int       # samples that went forward alone


@dataclass(frozen=True)
class Tally(LoopData):
    """Data of `count` samples that are never touched: notes what would be, in `spent`."""
    count: int = 1
    spent: list = field(default_factory=lambda: [0, 0])

    @property
    def n(self) -> int:
        return self.count

    def steps(self) -> int:
        """Return the samples of all batches."""
        per_epoch = -(-self.n // self.local.batch)
        whole, rest = divmod(self.local.steps or self.local.epochs * per_epoch, per_epoch)
        return whole * self.n + rest * self.local.batch

    def descend(self, net, w: Tensor, *_, spread: bool = False, **__):
        self.spent[0] += self.steps()
        return (w.clone(), w.new_zeros(())) if spread else w.clone()

    def walk(self, step, state, streams=()):
        def grad(net, w):
            self.spent[0] += self.steps()
            return torch.zeros_like(w)
        return step(tuple(t.clone() for t in state), grad, *(grad for _ in streams))

    def _forward(self, net: Net, w: Tensor) -> Tensor:
        self.spent[1] += self.n
        return super()._forward(net, w)

    def subset(self, share: float, stream: int, fixed: bool = False, rest: bool = False) -> Tally:
        kept = max(1, int(share * self.n + 1e-9))
        return dataclasses.replace(self, count=self.n - min(kept, self.n - 1) if rest else kept)


def work(method, shared, mine, blank: Tensor, n: int, local: Local) -> Work:
    """Return what a round of a client with n samples computes; `blank` (1, ...) is a sample as stored."""
    data = Tally(blank, torch.zeros(1, dtype=torch.int64, device=blank.device), 0, local, note=method.note(), count=n)
    method.client(shared, mine, data)
    return Work(*data.spent)
