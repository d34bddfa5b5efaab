"""FedAMP, Huang et al., AAAI 2021: each client is pulled to a mean of all models in which similar ones count more.

The name stands for attentive message passing. Every client has a mean of its own.
Objective: min over the w_i of sum_i f_i(w_i) + lam sum_{i<j} A(||w_i - w_j||^2), where A(x) = 1 - exp(-x / sigma).
Server: u_i = sum_j xi_ij w_j, where xi_ij = alpha A'(||w_i - w_j||^2) for j != i, and xi_ii = 1 - sum_j xi_ij.
Client: SGD from its own w_i on f_i(w) + lam / (2 alpha) ||w - u_i||^2.
`form: heuristic` is the paper's HeurFedAMP: xi_ij is proportional to exp(sigma cos(w_i, w_j)), and xi_ii = `own`.
The mean xi_ii of a round is reported as `own_weight`. At 1 the method is Local; at 0 the server forgets a client's own
model.
New clients cannot be served: the server has no model to send them, and no means that they are part of.
Defaults. The paper needs alpha so small that xi_ii >= 0, and tunes alpha and sigma for each data set. Here both follow
the models: sigma is the median squared distance of two clients' models in the round, and alpha = sigma / (n - 1). Then
the others have about .4 of the weight, and no row exceeds 1. Equal models do not count for the median, since clients
that never took part are all at the start; if there are no others, u_i = w_i. On 20 clients of the digits this gives a
mean xi_ii of .63; with alpha = sigma = 1 it is 0. `pull` = 1 was not tuned.
Departures. lam is set by its ratio to alpha: `pull`, the strength that a client feels. If a given alpha makes the xi_ij
of a row add up to more than 1, they are scaled down to 1 and xi_ii is 0 (as with alpha = sigma = 1, 20 clients and a
small network). u_i is a mean over the latest models of all clients, including those that did not take part lately; a
client that never took part is at the start. The server reads the models that clients keep."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmpi.errors import BadInput
from fedmpi.method import WHOLE, ClientData, Method, Nothing, Participants, RowsByField, TrainSettings, nbytes
from fedmpi.settings import Ge, Gt, Le


class Mine(NamedTuple):
    """What a client keeps between rounds: its personal model."""
    # (d,)
    w: Annotated[Tensor, WHOLE]


class Message(NamedTuple):
    """What the server addresses to one participant: the mean of all models that is its own."""
    # (d,) u_i, the client's own mean of all models
    u: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class FedAMP(Method):
    pull: Annotated[float, Ge(0), "lam / alpha, strength of the pull to u_i; must be below 1 / learning rate"] = 1.0
    alpha: Annotated[float | None, Gt(0), "with form distance: server step, with which weights of other models grow; "
                     "null: sigma / (clients - 1)"] = None
    sigma: Annotated[float | None, Gt(0), "squared distance at which attention fades; null: the round's "
                     "median of models that differ (with form heuristic the scale of cosines; null: 1)"] = None
    form: Annotated[Literal["distance", "heuristic"], "attention by distances, or by cosines (HeurFedAMP)"] = "distance"
    own: Annotated[float, Ge(0), Le(1), "with form heuristic: xi_ii, the weight of a client's own model"] = .2

    title = "FedAMP"
    paper = "Huang et al., AAAI 2021"
    judged_by = "w_i, the personal model"
    supports_local_batchnorm = False
    # The server mixes what clients keep
    supports_robust_mean = False

    def __post_init__(self) -> None:
        if self.form == "heuristic" and self.alpha is not None:
            raise ValueError(f"alpha = {self.alpha}: with form heuristic weights do not depend on it; leave it out, or "
                             "set form to distance")
        if self.form == "distance" and self.own != FedAMP.own:
            raise ValueError(f"own = {self.own}: it belongs to form heuristic; set form to that, or leave own out")

    def init(self, n: int) -> tuple[Nothing, Mine]:
        return Nothing(), Mine(self.model.start)

    def message_template(self) -> Message:
        return Message(self.model.start)

    def check(self, train: TrainSettings) -> None:
        if train.optimizer == "sgd" and train.lr * self.pull >= 1:
            raise BadInput(f"method.pull = {self.pull}: with train.lr = {train.lr} each step would go all the way to "
                           f"u_i, or past it; pull must be below 1 / lr = {1 / train.lr:.3g}")

    def messages(self, shared: Nothing, mine: RowsByField, who: Participants) -> Message:
        origin = None if self.form == "heuristic" else self.model.start
        xi = self.compute_attention(mine.w.gram(origin, blocks=self.model.trainable))
        who.log(own_weight=float(xi.diagonal().mean()))
        return Message(mine.w.mix(xi[torch.as_tensor(who.ids)]))

    def compute_attention(self, gram: Tensor) -> Tensor:
        """Return xi (n, n) from the inner products of all models; every row adds up to 1."""
        squares = gram.diagonal()
        if self.form == "heuristic":
            norms = squares.sqrt().clamp(min=1e-300)
            alike = ((self.sigma or 1.) * gram / norms / norms[:, None]).fill_diagonal_(-torch.inf)
            # NaN if there is no other client
            others = (1 - self.own) * alike.softmax(1).nan_to_num(0)
        else:
            distances = (squares + squares[:, None] - 2 * gram).clamp(min=0)
            others = self.weigh_by_distance(distances).fill_diagonal_(0)
            others /= others.sum(1, keepdim=True).clamp(min=1)
        return others + torch.diag((1 - others.sum(1)).clamp(min=0))

    def weigh_by_distance(self, distances: Tensor) -> Tensor:
        """Return alpha A'(distance) for squared distances (n, n); zeros if the round gives no sigma."""
        pairs = distances.numpy()[np.triu_indices(len(distances), 1)]
        apart = pairs[pairs > 0]
        if not self.sigma and not len(apart):
            return torch.zeros_like(distances)
        sigma = self.sigma or float(np.median(apart))
        largest = 1 / max(1, len(distances) - 1) if self.alpha is None else self.alpha / sigma
        return largest * (-distances / sigma).exp()

    def client(self, shared: Nothing, mine: Mine, data: ClientData) -> tuple[Mine, Nothing]:
        return Mine(data.descend(self.model, mine.w, pull=[(data.message.u, self.pull, None)])), Nothing()

    def traffic(self, shared: Nothing, up: Nothing) -> tuple[int, int]:
        # u_i goes down, and w_i up
        return nbytes(self.message_template()), nbytes(self.message_template())

    def personal(self, shared: Nothing, mine: Mine, data: ClientData) -> Tensor:
        return mine.w
