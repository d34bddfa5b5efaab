"""FedAvg, McMahan et al., AISTATS 2017: clients run SGD from the global model, and the server averages the results.

Objective: min over w of sum_i (n_i / n) f_i(w).
Client: E epochs of SGD from w. Server: w = sum_i n_i w_i / n.
Beside w, the client's own w_i is evaluated right after local training; that is FedAvg with fine-tuning (FedAvg-FT).
Departures: none by default; `weights: equal` takes the plain mean. No default was tuned on data."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from torch import Tensor

from fedmpi.method import WHOLE, ClientData, Method, Nothing, Participants, RowsByField


class Shared(NamedTuple):
    """The server's state: the global model."""
    # (d,) the global model
    w: Annotated[Tensor, WHOLE]


class Up(NamedTuple):
    """What a participant sends: its model after local training."""
    # (d,) the model after local training
    w: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class FedAvg(Method):
    weights: Annotated[Literal["samples", "equal"], "weights of the mean: training samples, or all equal"] = "samples"

    title = "FedAvg"
    paper = "McMahan et al., AISTATS 2017"
    judged_by = "w, the global model (after local training: w_i, FedAvg-FT)"
    serves_newcomers = "the global model"

    def init(self, n: int) -> tuple[Shared, Nothing]:
        return Shared(self.model.start), Nothing()

    def client(self, shared: Shared, mine: Nothing, data: ClientData) -> tuple[Nothing, Up]:
        return mine, Up(data.descend(self.model, shared.w))

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        return Shared(up.w.mean(who.sizes if self.weights == "samples" else None))

    def personal(self, shared: Shared, mine: Nothing, data: ClientData) -> Tensor:
        return shared.w

    def trained(self, shared: Shared, mine: Nothing, up: Up) -> Tensor:
        return up.w
