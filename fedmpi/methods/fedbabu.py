"""FedBABU, Oh et al., ICLR 2022: only the body is trained and averaged; the head is tuned when a client is evaluated.

The name stands for body aggregation and body update. The head stays at its random start h^0 during training.
Objective: min over phi of sum_i (n_i / n) f_i(phi, h^0). Then, for client i, `ft` epochs of SGD on f_i over all
parameters, from the last averaged phi and h^0.
Departures. What is evaluated is a model that is fine-tuned from the phi of that round and never kept. Its accuracy
is `accuracy`, and the accuracy of (phi, h^0) without fine-tuning is `accuracy_unadapted`. The authors' code divides the
learning rate by 10 at a half and at three quarters of the rounds; here it follows lr_decay and `train.schedule`, whose
step with milestones at these rounds is the same.
Defaults. `ft` = 5 was not tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from fedmpi.errors import BadInput
from fedmpi.method import BASE, ClientData, Method, Nothing, Participants, RowsByField
from fedmpi.models.flat import Model
from fedmpi.models.slices import AVOID_STATISTICS
from fedmpi.settings import Ge, PassCount

# Names the draw of the fine-tuning's batches
TUNING_STREAM = 1


class Shared(NamedTuple):
    """The server's state: the global feature extractor."""
    # (d - h,) feature extractor
    phi: Annotated[Tensor, BASE]


class Up(NamedTuple):
    """What a participant sends: the extractor after local training."""
    # (d - h,) the extractor after local training
    phi: Annotated[Tensor, BASE]


@dataclass(frozen=True)
class FedBABU(Method):
    ft: Annotated[PassCount, Ge(0), "epochs that fine-tune all parameters before a client is evaluated"] = 5

    title = "FedBABU"
    paper = "Oh et al., ICLR 2022"
    judged_by = "the averaged model after `ft` epochs on the client's data (unadapted: the averaged model)"
    serves_newcomers = "the averaged model after `ft` epochs on its data, as every client"

    def with_model(self, model: Model) -> Method:
        if model.head.buffers:
            raise BadInput(f"model.head: {self.title} never trains its head, so the BatchNorm in it would be evaluated "
                           f"with the statistics of the start; choose a head without it, or {AVOID_STATISTICS}")
        return super().with_model(model)

    def init(self, n: int) -> tuple[Shared, Nothing]:
        return Shared(self.model.start[self.model.phi]), Nothing()

    def add_head(self, phi: Tensor) -> Tensor:
        """Return (phi, h^0). Every rank knows the head, which never moves, so it is not sent."""
        return self.model.join(phi, self.model.start[self.model.h])

    def client(self, shared: Shared, mine: Nothing, data: ClientData) -> tuple[Nothing, Up]:
        w = data.descend(self.model, self.add_head(shared.phi), only=self.model.phi)
        return mine, Up(w[self.model.phi].clone())

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        return Shared(up.phi.mean(who.sizes))

    def personal(self, shared: Shared, mine: Nothing, data: ClientData) -> Tensor:
        w = self.add_head(shared.phi)
        return data.with_batches(self.ft, TUNING_STREAM, kind="fine_tuning").descend(self.model, w) if self.ft else w

    def unadapted(self, shared: Shared, mine: Nothing) -> Tensor | None:
        return self.add_head(shared.phi) if self.ft else None

    def global_model(self, shared: Shared) -> Tensor:
        return self.add_head(shared.phi)
