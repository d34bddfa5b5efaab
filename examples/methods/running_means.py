"""Running means: FedAvg whose clients pull the running mean of their features towards that of all clients.

After FedDBE (Zhang et al., NeurIPS 2023), without its personal part of the features. In each step m = (1 - mu) m + mu
mean of z over the batch, where z are the features, and the loss is cross-entropy + lam |m - M|^2 / width. Its gradient
flows through the batch alone, so the loss of a sample is cross-entropy + (2 lam mu / width) <m - M, z>.
Server: w = sum_i n_i w_i / n, and M is the mean of the clients' last m by the same weights.
The steps are those of the run's optimizer."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmpi.method import WHOLE, BatchGradient, ClientData, Method, Participants, RowsByField
from fedmpi.settings import Ge, Gt, Le


class Shared(NamedTuple):
    # (d,) the global model
    w: Annotated[Tensor, WHOLE]
    # (width,) the mean of the features over all clients
    M: Tensor


class Mine(NamedTuple):
    # (width,) the running mean of the client's features
    m: Tensor


class Up(NamedTuple):
    # (d,) the model after local training, and (width,) the running mean of the features
    w: Annotated[Tensor, WHOLE]
    m: Tensor


@dataclass(frozen=True)
class RunningMeans(Method):
    lam: Annotated[float, Ge(0), "strength of the pull on the mean"] = 1.
    mu: Annotated[float, Gt(0), Le(1), "share of a batch in the running mean"] = .1

    title = "RunningMeans"
    paper = "after FedDBE, Zhang et al., NeurIPS 2023"
    judged_by = "w, the global model"
    supports_targets = False

    def init(self, n: int) -> tuple[Shared, Mine]:
        zero = torch.zeros(self.model.width, device=self.model.start.device)
        return Shared(self.model.start, zero), Mine(zero)

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        factor = 2 * self.lam * self.mu / self.model.width

        def features(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self.model.features(w, x)

        def loss(w: Tensor, x: Tensor, y: Tensor, gap: Tensor) -> Tensor:
            z = self.model.features(w, x)
            logits = self.model.head(w[self.model.h], z)
            return F.cross_entropy(logits, y, reduction="none") + factor * z @ gap

        def step(state: tuple[Tensor, ...], grad: BatchGradient) -> tuple[Tensor, ...]:
            w, m, whole = state
            m = (1 - self.mu) * m + self.mu * grad.mean(features, w)
            return grad(loss, w, m - whole), m, whole
        w, m, _ = data.scan(step, (shared.w, mine.m, shared.M), optimize=True)
        return Mine(m), Up(w, m)

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        return Shared(up.w.mean(who.sizes), up.m.mean(who.sizes))

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return shared.w
