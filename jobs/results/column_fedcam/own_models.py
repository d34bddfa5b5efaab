"""FeSEM-CAM with every client evaluated with g + theta_i, as Fed-CAM's equation 12 adds them up.

    PYTHONPATH=jobs/results/column_fedcam fedmpi run CONFIG method='{name: own_models:FeSEMCAMOwn, k: 5}'

Training is that of `fesem_cam`, and so is the digest; only the model that a client is evaluated with is another one. It
is meant for `warm: local`, the default: it adds theta_i also in rounds in which g warms up alone."""
from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedmpi.method import ClientData, State
from fedmpi.methods.fesem import FeSEM
from fedmpi.methods.fesem_cam import FeSEMCAM


@dataclass(frozen=True)
class FeSEMCAMOwn(FeSEMCAM):
    title = "FeSEM-CAM, own models"
    judged_by = "g + its own model theta_i, after a round's steps from its cluster's centre beside g"

    def personal(self, shared: State, mine: State, data: ClientData) -> tuple[Tensor, Tensor]:
        _, up = FeSEM.client(self, shared, mine, data.with_added_logits(self.model, shared.g))
        return shared.g, up.w
