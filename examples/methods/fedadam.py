"""FedAdam, Reddi et al., ICLR 2021: the server takes Adam's step with the mean update of the clients.

Client: as in FedAvg. Server: g = mean of (w_i - w); m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
w = w + eta m / (sqrt(v) + tau). The moments m and v stay with the server.
Departures: all participants count alike, as in the paper's algorithm 2."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedmpi.method import SERVER_ONLY, WHOLE, ClientData, Method, Nothing, Participants, RowsByField
from fedmpi.settings import Ge, Gt, Lt


class Shared(NamedTuple):
    # (d,) the global model
    w: Annotated[Tensor, WHOLE]
    # (d,) both moments of the mean update
    m: Annotated[Tensor, SERVER_ONLY]
    v: Annotated[Tensor, SERVER_ONLY]


class Up(NamedTuple):
    # (d,) the model after local training
    w: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class FedAdam(Method):
    eta: Annotated[float, Gt(0), "the server's learning rate"] = .1
    b1: Annotated[float, Ge(0), Lt(1), "decay of the first moment"] = .9
    b2: Annotated[float, Ge(0), Lt(1), "decay of the second moment"] = .99
    tau: Annotated[float, Gt(0), "keeps the denominator above 0"] = 1e-3

    title = "FedAdam"
    paper = "Reddi et al., ICLR 2021"
    judged_by = "w, the global model"
    supports_robust_mean = True

    def init(self, n: int) -> tuple[Shared, Nothing]:
        w = self.model.start
        return Shared(w, torch.zeros_like(w), torch.full_like(w, self.tau ** 2)), Nothing()

    def client(self, shared: Shared, mine: Nothing, data: ClientData) -> tuple[Nothing, Up]:
        return mine, Up(data.descend(self.model, shared.w))

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        mean = up.w.mean()
        g = mean - shared.w
        m = self.b1 * shared.m + (1 - self.b1) * g
        v = self.b2 * shared.v + (1 - self.b2) * g ** 2
        w = shared.w + self.eta * m / (v.sqrt() + self.tau)
        # Running statistics of BatchNorm are not parameters: they are averaged.
        for statistics in self.model.buffers:
            w[statistics] = mean[statistics]
        return Shared(w, m, v)

    def personal(self, shared: Shared, mine: Nothing, data: ClientData) -> Tensor:
        return shared.w
