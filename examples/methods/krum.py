"""Multi-Krum, Blanchard et al., NeurIPS 2017: the server averages the models that lie nearest to their neighbours.

Client: as in FedAvg. Server, of n models of which `f` may be an attacker's: the score of a model is the sum of its
squared distances to its n - f - 2 nearest others; w = mean of the `m` models with the lowest scores. m = 1 is Krum.
Departures: the paper's server applies gradients, this one takes models after local training; running statistics of
BatchNorm are averaged with the models, and do not count in the distances."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedmpi.method import WHOLE, ClientData, Method, Nothing, Participants, RowsByField
from fedmpi.settings import Ge


class Shared(NamedTuple):
    # (d,) the global model
    w: Annotated[Tensor, WHOLE]


class Up(NamedTuple):
    # (d,) the model after local training
    w: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class Krum(Method):
    f: Annotated[int, Ge(0), "models of a round that may be an attacker's"] = 1
    m: Annotated[int, Ge(1), "models that are averaged; at most all"] = 3

    title = "Multi-Krum"
    paper = "Blanchard et al., NeurIPS 2017"
    judged_by = "w, the global model"
    supports_robust_mean = False

    def init(self, n: int) -> tuple[Shared, Nothing]:
        return Shared(self.model.start), Nothing()

    def client(self, shared: Shared, mine: Nothing, data: ClientData) -> tuple[Nothing, Up]:
        return mine, Up(data.descend(self.model, shared.w))

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        # Small distances keep their digits if what all models share is subtracted first.
        products = up.w.gram(shared.w, blocks=self.model.trainable)
        squares = products.diagonal()
        distances = squares[:, None] + squares - 2 * products
        n = len(distances)
        # The nearest model is the model itself.
        nearest = distances.fill_diagonal_(-torch.inf).sort(1).values[:, 1:max(1, n - self.f - 2) + 1]
        chosen = nearest.sum(1).argsort(stable=True)[:self.m]
        weights = torch.zeros(1, n, dtype=torch.float64)
        weights[0, chosen] = 1 / len(chosen)
        return Shared(up.w.combine(weights)[0])

    def personal(self, shared: Shared, mine: Nothing, data: ClientData) -> Tensor:
        return shared.w
