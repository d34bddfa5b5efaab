"""FedProx+: K FedProx models from independent starts, trained side by side; a soft vote serves all clients.

Objective of each local training: min over w of f_i(w) + mu/2 ||w - w_k||^2, w_k the k-th global model as downloaded;
prediction: log of the mean of the K models' probabilities. The ensemble baseline of Ma et al. (Fed-CAM), NeurIPS 2023,
over Li et al. (FedProx), MLSys 2020; mu as in the tables of FedAH. FedAvg+ with the proximal term of FedProx."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedmpi.methods.fedavg_plus import FedAvgPlus
from fedmpi.settings import Ge


@dataclass(frozen=True)
class FedProxPlus(FedAvgPlus):
    mu: Annotated[float, Ge(0), "pull of each model towards its global model"] = .001

    title = "FedProx+"

    def train(self, w, data):
        return data.descend(self.model, w, pull=[(w, self.mu, None)])
