"""Ditto, Li et al., ICML 2021: beside the global model each client trains a personal one that is pulled to it.

Objective: min over v_i of f_i(v_i) + lam/2 ||v_i - w*||^2, with w* = argmin sum_i (n_i / n) f_i(w), for which w^t, the
model of FedAvg in this round, stands in. lam = 0 is Local, lam -> infinity is FedAvg.
Departures. v_i takes the same batches as w_i, and as many. Only v_i is judged: the accuracy of w is that of a run of
FedAvg with the same seed, whose w is this one bit by bit, so that no series holds both."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from fedmpi.method import Method
from fedmpi.settings import Ge


class Shared(NamedTuple):
    w: Tensor      # (d,) the global model


class Mine(NamedTuple):
    v: Tensor      # (d,) the personal model


class Up(NamedTuple):
    w: Tensor      # (d,) the global model after local training


@dataclass(frozen=True)
class Ditto(Method):
    lam: Annotated[float, Ge(0), "pull of the personal model towards the global one"] = 1.

    title = "Ditto"
    paper = "Li et al., ICML 2021"
    judged_by = "v_i, the personal model"

    def init(self, n):
        return Shared(self.model.start), Mine(self.model.start)

    def client(self, shared, mine, data):
        v = data.descend(self.model, mine.v, pull=[(shared.w, self.lam, None)])
        return Mine(v), Up(data.descend(self.model, shared.w))

    def server(self, shared, up, who):
        return Shared(up.w.mean(who.sizes))

    def personal(self, shared, mine, data):
        return mine.v
