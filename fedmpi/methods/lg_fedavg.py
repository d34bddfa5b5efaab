"""LG-FedAvg, Liang et al., 2020: the server averages the head, and the feature extractor stays with the client.

The name stands for local and global parts. It is the mirror image of FedPer, and cheap to send.
Objective: min over h, phi_1..phi_N of sum_i (n_i / n) f_i(phi_i, h). Clients train both together by E epochs of SGD.
Departures. Training begins at the common start; the paper's classification experiments continue a run of FedAvg. There
are no settings."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from fedmpi.method import BASE, HEAD, ClientData, Method, Participants, RowsByField


class Shared(NamedTuple):
    """The server's state: the global head."""
    # (h,) the global head
    h: Annotated[Tensor, HEAD]


class Mine(NamedTuple):
    """What a client keeps between rounds: its feature extractor."""
    # (d - h,) the client's feature extractor
    phi: Annotated[Tensor, BASE]


class Up(NamedTuple):
    """What a participant sends: the head after local training."""
    # (h,) the head after local training
    h: Annotated[Tensor, HEAD]


@dataclass(frozen=True)
class LGFedAvg(Method):
    title = "LG-FedAvg"
    paper = "Liang et al., 2020"
    judged_by = "(phi_i, h), the averaged head on the own extractor (after local training: (phi_i, h_i))"
    serves_newcomers = "the averaged head on the first extractor, after a round of training both"

    def init(self, n: int) -> tuple[Shared, Mine]:
        return Shared(self.model.start[self.model.h]), Mine(self.model.start[self.model.phi])

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        w = data.descend(self.model, self.model.join(mine.phi, shared.h))
        # Both parts are copied, because a slice would keep all of w in memory
        return Mine(w[self.model.phi].clone()), Up(w[self.model.h].clone())

    def serve_newcomer(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return data.descend(self.model, self.model.join(mine.phi, shared.h))

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        return Shared(up.h.mean(who.sizes))

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return self.model.join(mine.phi, shared.h)

    def trained(self, shared: Shared, mine: Mine, up: Up) -> Tensor:
        return self.model.join(mine.phi, up.h)
