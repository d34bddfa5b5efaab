"""FedPer, Arivazhagan et al., 2019: the server averages the feature extractor, and the head stays with the client.

Objective: min over phi, h_1..h_N of sum_i (n_i / n) f_i(phi, h_i). Clients train both together by E epochs of SGD.
New clients. The paper says nothing of them; ours train a head for a round, as FedRep's do.
Departures. The personal layers are the model's head block (`model.head`), and all heads start equal. There are no
settings."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from fedmpi.method import BASE, HEAD, ClientData, Method, Participants, RowsByField


class Shared(NamedTuple):
    """The server's state: the global feature extractor."""
    # (d - h,) feature extractor
    phi: Annotated[Tensor, BASE]


class Mine(NamedTuple):
    """What a client keeps between rounds: its head."""
    # (h,) the client's head
    h: Annotated[Tensor, HEAD]


class Up(NamedTuple):
    """What a participant sends: the extractor after local training."""
    # (d - h,) the extractor after local training
    phi: Annotated[Tensor, BASE]


@dataclass(frozen=True)
class FedPer(Method):
    title = "FedPer"
    paper = "Arivazhagan et al., 2019"
    judged_by = "(phi, h_i), the own head on the averaged extractor (after local training: (phi_i, h_i))"
    serves_newcomers = "phi, and a head trained for a round on frozen phi"

    def init(self, n: int) -> tuple[Shared, Mine]:
        return Shared(self.model.start[self.model.phi]), Mine(self.model.start[self.model.h])

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        w = data.descend(self.model, self.model.join(shared.phi, mine.h))
        # Both parts are copied, because a slice would keep all of w in memory
        return Mine(w[self.model.h].clone()), Up(w[self.model.phi].clone())

    def fit_head(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        """Return the client's head after training with phi as downloaded."""
        return data.with_features(self.model.base, shared.phi).descend(self.model.head, mine.h)

    def serve_newcomer(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return self.model.join(shared.phi, self.fit_head(shared, mine, data))

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        return Shared(up.phi.mean(who.sizes))

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return self.model.join(shared.phi, mine.h)

    def trained(self, shared: Shared, mine: Mine, up: Up) -> Tensor:
        return self.model.join(up.phi, mine.h)
