"""FedProx, Li et al., MLSys 2020: FedAvg whose clients are held near the global model while they train.

Objective of client i in round t: min over w of f_i(w) + mu/2 ||w - w^t||^2; its minimiser is sought by E epochs of SGD,
and the server averages as FedAvg does. mu = 0 is FedAvg.
Departures. Every client trains all its epochs: the paper also lets slow ones send what they have."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedmpi.methods.fedavg import FedAvg, Up
from fedmpi.settings import Ge


@dataclass(frozen=True)
class FedProx(FedAvg):
    mu: Annotated[float, Ge(0), "pull of the local model towards the global one"] = .001

    title = "FedProx"
    paper = "Li et al., MLSys 2020"
    judged_by = "w, the global model (after local training: w_i)"

    def client(self, shared, mine, data):
        return mine, Up(data.descend(self.model, shared.w, pull=[(shared.w, self.mu, None)]))
