"""FedAvg+, Ma et al. (Fed-CAM), NeurIPS 2023: K FedAvg models from independent starts vote for every client.

Objective: FedAvg's (McMahan et al., AISTATS 2017), K times: min over w_k of sum_i (n_i / n) f_i(w_k), k = 1..K.
Prediction: the log of the mean of the K models' probabilities (a soft vote). Every client trains all K models, each on
batches of its own; those of the first model are FedAvg's.
Departures: none known. Defaults: K = 5 is one of the two numbers of clusters in Fed-CAM's tables; it was not tuned
here."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedmpi.method import Method, Nothing
from fedmpi.settings import Ge


class Shared(NamedTuple):
    w: Tensor      # (K, d)


class Up(NamedTuple):
    w: Tensor      # (K, d)


@dataclass(frozen=True)
class FedAvgPlus(Method):
    K: Annotated[int, Ge(1), "models that vote"] = 5
    weights: Annotated[Literal["samples", "equal"], "mean weighted by training samples, or plain"] = "samples"

    title = "FedAvg+"
    paper = "Ma et al., NeurIPS 2023"
    judged_by = "the soft vote of w_1..w_K (after local training: of the client's K models)"

    def init(self, n):
        return Shared(self.model.starts(self.K)), Nothing()

    def client(self, shared, mine, data):
        return mine, Up(torch.stack([self.train(w, data.with_batches(None, k)) for k, w in enumerate(shared.w)]))

    def train(self, w, data):
        """Train one of the models."""
        return data.descend(self.model, w)

    def server(self, shared, up, who):
        w = up.w.mean(who.sizes if self.weights == "samples" else None)
        return Shared(w.view_as(shared.w))

    def personal(self, shared, mine, data):
        return shared.w

    def trained(self, mine, up):
        return up.w

    def predict(self, w, x):
        votes = torch.stack([self.model(one, x).log_softmax(-1) for one in w])
        return votes.logsumexp(0) - math.log(len(w))
