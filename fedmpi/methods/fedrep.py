"""FedRep, Collins et al., ICML 2021: FedPer in which a client first fits its head, and then fits the extractor to it.

Objective: min over phi of sum_i (n_i / n) min over h_i of f_i(phi, h_i).
Client: trains h_i for `head_epochs` epochs with phi as downloaded, then phi for E epochs with h_i frozen (the paper has
E = 1). Server: averages phi. A new client trains a head on frozen phi (section 5, generalization to new clients).
Departures. phi is frozen while the head trains, so its features are computed only once; without BatchNorm this is
exact. The average of phi is weighted by n_i; the paper takes the plain mean. The authors' code tunes the head once more
after the last round and has a weight decay of 1e-4; here there is neither.
Defaults. `head_epochs` = 10 is the paper's value. The tables of FedAH and FedMHC were made with 1, which their jobs
set. It was not tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedmpi.method import ClientData
from fedmpi.methods.fedper import FedPer, Mine, Shared, Up
from fedmpi.settings import Ge, PassCount

# Names the draw of the head passes' batches
HEAD_PASSES_STREAM = 2


@dataclass(frozen=True)
class FedRep(FedPer):
    head_epochs: Annotated[PassCount, Ge(1), "epochs that train the head, with phi frozen, before phi is trained"] = 10

    title = "FedRep"
    paper = "Collins et al., ICML 2021"
    serves_newcomers = "phi, and a head trained for `head_epochs` on frozen phi"

    def fit_head(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        features = data.with_features(self.model.base, shared.phi)
        return features.with_batches(self.head_epochs, HEAD_PASSES_STREAM, kind="head").descend(self.model.head, mine.h)

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        h = self.fit_head(shared, mine, data)
        w = data.descend(self.model, self.model.join(shared.phi, h), only=self.model.phi)
        return Mine(h), Up(w[self.model.phi].clone())
