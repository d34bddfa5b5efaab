"""FedProx+, Ma et al. (Fed-CAM), NeurIPS 2023: FedAvg+ whose models are trained with the proximal term of FedProx.

Objective of each local training: min over w of f_i(w) + mu/2 ||w - w_k||^2, where w_k is the k-th global model as
downloaded (Li et al., MLSys 2020). Prediction: that of FedAvg+.
Departures: the paper names "a coefficient of 230 and a regularization of 0.95" for FedProx, which is no strength that
could be set here. Defaults: mu = .001 is the value behind the published tables of FedAH; it was not tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedmpi.method import ClientData, TrainSettings
from fedmpi.methods._proximal import refuse_strong_pull
from fedmpi.methods.fedavg_plus import FedAvgPlus
from fedmpi.settings import Ge


@dataclass(frozen=True)
class FedProxPlus(FedAvgPlus):
    mu: Annotated[float, Ge(0), "pull of each model towards its global model"] = .001

    title = "FedProx+"

    def check(self, train: TrainSettings) -> None:
        refuse_strong_pull(train, "mu", self.mu, "w_k")

    def train(self, w: Tensor, data: ClientData) -> Tensor:
        return data.descend(self.model, w, pull=[(w, self.mu, None)])
