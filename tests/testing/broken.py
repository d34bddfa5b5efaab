"""Methods, each of which breaks one promise of the contract."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedmpi.engines.vmap import VmapData
from fedmpi.method import WHOLE
from fedmpi.methods.fedavg import FedAvg, Shared, Up
from fedmpi.settings import Ge, Le

# Values that faulty methods keep from call to call.
SEEN: list[int] = []


class Mine(NamedTuple):
    w: Annotated[Tensor, WHOLE]


class Keeping(FedAvg):
    """FedAvg whose clients keep a model."""

    def init(self, n):
        return Shared(self.model.start), Mine(self.model.start)

    def client(self, shared, mine, data):
        w = data.descend(self.model, shared.w)
        return Mine(self.keep(shared, mine, w, data)), Up(w)

    def keep(self, shared, mine, w, data):
        return w.clone()


class Branching(Keeping):
    def keep(self, shared, mine, w, data):
        return w if w.sum() > 0 else -w


class DifferingAtLast(FedAvg):
    """FedAvg that judges another model where many clients are judged at once."""

    def personal(self, shared, mine, data):
        return shared.w * 1.01 if isinstance(data, VmapData) else shared.w


class Idle(FedAvg):
    def client(self, shared, mine, data):
        return mine, Up(shared.w.clone())


class Growing(FedAvg):
    def server(self, shared, up, who):
        return Shared(torch.cat([up.w.mean(), torch.zeros(who.round)])[:self.model.size + who.round])

    def client(self, shared, mine, data):
        return mine, Up(data.descend(self.model, shared.w[:self.model.size]))

    def personal(self, shared, mine, data):
        return shared.w[:self.model.size]


class BehindTheBack(FedAvg):
    def server(self, shared, up, who):
        shared.w.numpy()[:] = up.w.mean().numpy()
        return shared


class Drawing(FedAvg):
    def server(self, shared, up, who):
        return Shared(up.w.mean() + 1e-3 * torch.rand(len(shared.w)))


class Numbering(Keeping):
    def keep(self, shared, mine, w, data):
        return w + 1e-3 * data.id


class Remembering(Keeping):
    def keep(self, shared, mine, w, data):
        SEEN.append(1)
        return w + 1e-3 * len(SEEN)


class Peeping(FedAvg):
    def personal(self, shared, mine, data):
        SEEN.append(1)
        return shared.w

    def server(self, shared, up, who):
        return Shared(up.w.mean() + len(SEEN))


class Dividing(Keeping):
    def keep(self, shared, mine, w, data):
        return w / (data.n - 1)


class Counting(FedAvg):
    def server(self, shared, up, who):
        return Shared(up.w.mean() + who.clients / len(who.ids) * len(self.count(who)))

    def count(self, who):
        SEEN.extend(who.ids.tolist())
        return SEEN


class Lending(Keeping):
    def keep(self, shared, mine, w, data):
        return shared.w


class Overwriting(Keeping):
    def keep(self, shared, mine, w, data):
        mine.w.mul_(.9)
        return w


@dataclass(frozen=True)
class Unused(FedAvg):
    lam: Annotated[float, Ge(0), "has no effect"] = 1.


@dataclass(frozen=True)
class Varied(FedAvg):
    halved: bool = False
    kind: Literal["a", "b"] = "a"
    times: Annotated[int, Ge(1), Le(3)] = 1
    limit: Annotated[float | None, Le(1)] = .1
    pair: tuple[int, int] = (1, 1)


BROKEN = {"vectorised": Branching, "learning": Idle, "shapes": Growing, "sending": BehindTheBack, "hosting": Drawing,
          "renumbering": Numbering, "independence": Remembering, "judging": Peeping, "odd clients": Dividing,
          "bad updates": Counting, "memory": Lending, "arguments": Overwriting, "settings": Unused,
          "resuming": Remembering}
