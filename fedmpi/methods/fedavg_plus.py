"""FedAvg+, Ma et al. (Fed-CAM), NeurIPS 2023: K FedAvg models from independent starts vote for every client.

Objective: FedAvg's (McMahan et al., AISTATS 2017), K times: min over w_k of sum_i (n_i / n) f_i(w_k), k = 1..K.
Prediction: the log of the mean of the K models' probabilities (a soft vote), or the mean of their outputs where these
predict numbers. Every client trains all K models, each on batches of its own; those of the first model are FedAvg's.
Departures: none known. Defaults: K = 5 is one of the two numbers of clusters in Fed-CAM's tables; it was not tuned
here."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedmpi.method import WHOLE, ClientData, Method, Nothing, Participants, RowsByField
from fedmpi.settings import ModelCount


class Shared(NamedTuple):
    """The server's state: the K global models."""
    # (K, d) the global models
    w: Annotated[Tensor, WHOLE]


class Up(NamedTuple):
    """What a participant sends: all K models after local training."""
    # (K, d) the models after local training
    w: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class FedAvgPlus(Method):
    K: Annotated[ModelCount, "number of models that vote"] = 5
    weights: Annotated[Literal["samples", "equal"], "weights of the mean: training samples, or all equal"] = "samples"

    title = "FedAvg+"
    paper = "Ma et al., NeurIPS 2023"
    judged_by = "the soft vote of w_1..w_K (after local training: of the client's K models)"
    serves_newcomers = "the soft vote of the global models"
    # A client would keep the statistics of the last model alone
    supports_local_batchnorm = False

    def init(self, n: int) -> tuple[Shared, Nothing]:
        return Shared(self.model.starts(self.K)), Nothing()

    def client(self, shared: Shared, mine: Nothing, data: ClientData) -> tuple[Nothing, Up]:
        return mine, Up(torch.stack([self.train(w, data.with_batches(None, k)) for k, w in enumerate(shared.w)]))

    def train(self, w: Tensor, data: ClientData) -> Tensor:
        """Return one of the models after local training."""
        return data.descend(self.model, w)

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        w = up.w.mean(who.sizes if self.weights == "samples" else None)
        return Shared(w.view_as(shared.w))

    def personal(self, shared: Shared, mine: Nothing, data: ClientData) -> Tensor:
        return shared.w

    def trained(self, shared: Shared, mine: Nothing, up: Up) -> Tensor:
        return up.w

    def predict(self, w: Tensor, x: Tensor) -> Tensor:
        outputs = torch.stack([self.model(one, x) for one in w])
        if self.model.classes == 1:
            return outputs.mean(0)
        return outputs.log_softmax(-1).logsumexp(0) - math.log(len(w))
