"""FedProx, Li et al., MLSys 2020: FedAvg in which a proximal term holds every client near the global model.

Objective of client i in round t: min over w of f_i(w) + mu/2 ||w - w^t||^2. E epochs of SGD look for the minimiser, and
the server averages as FedAvg does. With mu = 0 this is FedAvg.
Departures. Every client trains all its epochs; in the paper, slow clients may send what they have, as they do here with
`stragglers.late: partial`.
Defaults. mu = .001 is the value behind the published tables of FedAH; it was not tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedmpi.method import ClientData, Nothing, TrainSettings
from fedmpi.methods._proximal import refuse_strong_pull
from fedmpi.methods.fedavg import FedAvg, Shared, Up
from fedmpi.settings import Ge


@dataclass(frozen=True)
class FedProx(FedAvg):
    mu: Annotated[float, Ge(0), "pull of the local model towards the global one"] = .001

    title = "FedProx"
    paper = "Li et al., MLSys 2020"
    judged_by = "w, the global model (after local training: w_i)"

    def check(self, train: TrainSettings) -> None:
        refuse_strong_pull(train, "mu", self.mu, "w")

    def client(self, shared: Shared, mine: Nothing, data: ClientData) -> tuple[Nothing, Up]:
        return mine, Up(data.descend(self.model, shared.w, pull=[(shared.w, self.mu, None)]))
