"""Ditto, Li et al., ICML 2021: each client trains a personal model that is pulled to the global one.

Objective: min over v_i of f_i(v_i) + lam/2 ||v_i - w*||^2, where w* = argmin sum_i (n_i / n) f_i(w). The model w^t of
FedAvg in this round stands in for w*. With lam = 0 this is Local, and for lam -> infinity it is FedAvg.
Departures. v_i takes the same batches as w_i, and as many of them. Only v_i is evaluated, so that no series of
accuracies mixes the two models: w is, bit by bit, the model of a run of FedAvg with the same seed, unless layers draw
random numbers (dropout): they draw for v_i first.
Defaults. lam = 1 was not tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from fedmpi.method import WHOLE, ClientData, Method, Participants, RowsByField, TrainSettings
from fedmpi.methods._proximal import refuse_strong_pull
from fedmpi.settings import Ge


class Shared(NamedTuple):
    """The server's state: the global model."""
    # (d,) the global model
    w: Annotated[Tensor, WHOLE]


class Mine(NamedTuple):
    """What a client keeps between rounds: its personal model."""
    # (d,) the personal model
    v: Annotated[Tensor, WHOLE]


class Up(NamedTuple):
    """What a participant sends: the global model after training on its data."""
    # (d,) the global model after local training
    w: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class Ditto(Method):
    lam: Annotated[float, Ge(0), "pull of the personal model towards the global one"] = 1.

    title = "Ditto"
    paper = "Li et al., ICML 2021"
    judged_by = "v_i, the personal model"
    serves_newcomers = "v trained for a round from w, and pulled to it"

    def init(self, n: int) -> tuple[Shared, Mine]:
        return Shared(self.model.start), Mine(self.model.start)

    def check(self, train: TrainSettings) -> None:
        refuse_strong_pull(train, "lam", self.lam, "w")

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        v = data.descend(self.model, mine.v, pull=[(shared.w, self.lam, None)])
        return Mine(v), Up(data.descend(self.model, shared.w))

    def serve_newcomer(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return data.descend(self.model, shared.w, pull=[(shared.w, self.lam, None)])

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        return Shared(up.w.mean(who.sizes))

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return mine.v
