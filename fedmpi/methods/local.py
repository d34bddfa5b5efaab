"""Local: every client trains alone and nothing is sent; it is the floor of every comparison.

Objective: min over w_i of f_i(w_i), for each client by itself. There is no paper, and there are no settings."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from fedmpi.method import WHOLE, ClientData, Method, Nothing


class Mine(NamedTuple):
    """What a client keeps between rounds: its own model."""
    # (d,) the client's own model
    w: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class Local(Method):
    title = "Local"
    paper = "no communication"
    judged_by = "w_i, its own model"
    serves_newcomers = "its own model after the local steps of one round from the common start"
    # Nothing is sent
    supports_robust_mean = False

    def init(self, n: int) -> tuple[Nothing, Mine]:
        return Nothing(), Mine(self.model.start)

    def client(self, shared: Nothing, mine: Mine, data: ClientData) -> tuple[Mine, Nothing]:
        return Mine(data.descend(self.model, mine.w)), Nothing()

    def serve_newcomer(self, shared: Nothing, mine: Mine, data: ClientData) -> Tensor:
        return data.descend(self.model, mine.w)

    def personal(self, shared: Nothing, mine: Mine, data: ClientData) -> Tensor:
        return mine.w
