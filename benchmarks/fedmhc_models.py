"""FedMHC with all three models of a client evaluated in one run, to see what its personal model gains over its group's.

`accuracy_mean` is the accuracy of theta_i, as in FedMHC; `accuracy_mean_unadapted` that of w_i = (phi, H_m) as it will
be downloaded next, with the m that the client chose last; `accuracy_mean_after` that of w_i right after local training.
jobs/strengths_fedmhc.yaml runs it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedmpi.method import WHOLE
from fedmpi.methods import fedmhc
from fedmpi.models.tables import table_row


class Mine(NamedTuple):
    # (d,) the personal model
    theta: Annotated[Tensor, WHOLE]
    # () the head chosen last
    m: Tensor


@dataclass(frozen=True)
class ThreeModels(fedmhc.FedMHC):
    title = "FedMHC, three models"
    judged_by = "theta_i (unadapted: w_i as downloaded; after local training: w_i)"

    def init(self, n):
        shared, mine = super().init(n)
        return shared, Mine(mine.theta, torch.zeros((), dtype=torch.int64))

    def client(self, shared, mine, data):
        kept, up = super().client(shared, fedmhc.Mine(mine.theta), data)
        return Mine(kept.theta, self.choose_group(shared, data).clone()), up

    def unadapted(self, shared, mine):
        return self.model.join(shared.phi, table_row(shared.heads, mine.m))

    def trained(self, shared, mine, up):
        return up.w
