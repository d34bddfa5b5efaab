"""MOON, Li, He and Song, CVPR 2021: a client's features stay near those of the global model, away from its last ones.

Loss of a sample: cross-entropy - mu log(e^(s(z, z_glob) / tau) / (e^(s(z, z_glob) / tau) + e^(s(z, z_prev) / tau))).
s is the cosine, and z, z_glob, z_prev are the features of the sample by the model in training, the global model of this
round and the client's model of its last round (eq. 3).
Server: w = sum_i n_i w_i / n.
Departures: z are the features before the last layer; the paper adds a projection head behind them. A client that takes
part for the first time has the run's first model as its last one."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmpi.method import WHOLE, ClientData, Method, Participants, RowsByField
from fedmpi.settings import Ge, Gt


class Shared(NamedTuple):
    # (d,) the global model
    w: Annotated[Tensor, WHOLE]


class Mine(NamedTuple):
    # (d,) the client's model after its last round
    w: Annotated[Tensor, WHOLE]


class Up(NamedTuple):
    # (d,) the model after local training
    w: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class Moon(Method):
    mu: Annotated[float, Ge(0), "weight of the contrastive term"] = 1.
    tau: Annotated[float, Gt(0), "temperature of the cosines"] = .5

    title = "MOON"
    paper = "Li, He and Song, CVPR 2021"
    judged_by = "w, the global model"
    supports_targets = False

    def init(self, n: int) -> tuple[Shared, Mine]:
        return Shared(self.model.start), Mine(self.model.start)

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        w = data.descend(self.compute_loss, shared.w, args=(shared.w, mine.w))
        return Mine(w), Up(w.clone())

    def compute_loss(self, w: Tensor, x: Tensor, y: Tensor, now: Tensor, before: Tensor) -> Tensor:
        z = self.model.features(w, x)
        near, far = (F.cosine_similarity(z, self.model.features(v, x), dim=-1) / self.tau for v in (now, before))
        logits = self.model.head(w[self.model.h], z)
        return F.cross_entropy(logits, y, reduction="none") + self.mu * (torch.logaddexp(near, far) - near)

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        return Shared(up.w.mean(who.sizes))

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return shared.w
