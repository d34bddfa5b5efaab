"""SCAFFOLD, Karimireddy et al., ICML 2020: control variates correct the drift of each client's steps (option II).

Client: y = w; K steps y = y - lr (g(y) - c_i + c); c_i+ = c_i - c + (w - y) / (K lr).
Server: w = w + eta_g mean(y_i - w); c = c + (|S| / N) mean(c_i+ - c_i).
Departures: none. The steps are plain SGD with the run's learning rate; its momentum does not apply."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedmpi.method import WHOLE, BatchGradient, ClientData, Method, Participants, RowsByField
from fedmpi.settings import Gt


class Shared(NamedTuple):
    # (d,) the global model
    w: Annotated[Tensor, WHOLE]
    # (d,) the mean of all clients' control variates
    c: Tensor


class Mine(NamedTuple):
    # (d,) the client's control variate
    c: Tensor


class Up(NamedTuple):
    # (d,) the model after local training, and the change of the control variate
    w: Annotated[Tensor, WHOLE]
    change: Tensor


@dataclass(frozen=True)
class Scaffold(Method):
    eta: Annotated[float, Gt(0), "the server's step towards the mean"] = 1.

    title = "SCAFFOLD"
    paper = "Karimireddy et al., ICML 2020"
    judged_by = "w, the global model"
    supports_robust_mean = False
    supports_local_batchnorm = False

    def init(self, n: int) -> tuple[Shared, Mine]:
        zero = torch.zeros_like(self.model.start)
        return Shared(self.model.start, zero), Mine(zero)

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        def step(state: tuple[Tensor, ...], grad: BatchGradient) -> tuple[Tensor, ...]:
            y, drift = state
            return y - data.lr * (grad(self.model, y) + drift), drift
        y, _ = data.scan(step, (shared.w, shared.c - mine.c))
        c = mine.c - shared.c + (shared.w - y) / (data.steps * data.lr)
        # Running statistics of BatchNorm are not parameters, so nothing corrects them.
        for statistics in self.model.buffers:
            c[statistics] = 0
        return Mine(c), Up(y, c - mine.c)

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        mean = up.w.mean()
        w = shared.w + self.eta * (mean - shared.w)
        for statistics in self.model.buffers:
            w[statistics] = mean[statistics]
        return Shared(w, shared.c + len(who.ids) / who.clients * up.change.mean())

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return shared.w
