"""Local: every client trains alone and nothing is sent; it is the floor of every comparison.

Objective: min over w_i of f_i(w_i), for each client by itself. There is no paper, and there are no settings."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedmpi.method import Method, Nothing


class Mine(NamedTuple):
    w: Tensor      # (d,)


@dataclass(frozen=True)
class Local(Method):
    title = "Local"
    paper = "no communication"
    judged_by = "w_i, its own model"
    supports_robust_mean = False      # nothing is sent

    def init(self, n):
        return Nothing(), Mine(self.model.start)

    def client(self, shared, mine, data):
        return Mine(data.descend(self.model, mine.w)), Nothing()

    def personal(self, shared, mine, data):
        return mine.w
