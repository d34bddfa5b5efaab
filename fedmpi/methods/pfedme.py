"""pFedMe, Dinh et al., NeurIPS 2020: personal models that minimise Moreau envelopes around the global model.

Objective: min over w of sum_i (n_i / n) F_i(w), where F_i(w) = min over theta of f_i(theta) + lam/2 ||theta - w||^2.
Client, for each batch: K steps theta <- theta - lr_p (grad f(theta; b) + lam (theta - w_i)), then one step of its copy
of the global model, w_i <- w_i - eta lam (w_i - theta). Server: w <- (1 - beta) w + beta mean(w_i).
Departures. theta starts each round at w and carries over from batch to batch. The mean is weighted by n_i. All steps
are plain: they ignore the run's momentum, and other settings of the optimizer are refused. lr_p changes over the
rounds as eta does. Only participants train; the authors' code trains all clients and averages some of them. So here
a client is evaluated with the theta of its last round, and before its first one with the initial model; in the authors'
code and in PFLlib the names of both models share their parameters, so what is evaluated as personal is w_i. It is
evaluated here, too, as the model right after local training. If eta lam is above 1, every step takes w_i past theta.
Defaults. None was tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from fedmpi.method import WHOLE, ClientData, Method, Participants, RowsByField
from fedmpi.methods._proximal import descend_on_envelope, refuse_overshoot
from fedmpi.models.slices import take_statistics
from fedmpi.settings import Ge, Gt


class Shared(NamedTuple):
    """The server's state: the global model."""
    # (d,) the global model
    w: Annotated[Tensor, WHOLE]


class Mine(NamedTuple):
    """What a client keeps between rounds: its personal model."""
    # (d,) the personal model
    theta: Annotated[Tensor, WHOLE]


class Up(NamedTuple):
    """What a participant sends: its copy of the global model after local training."""
    # (d,) w_i, the client's copy of the global model
    w: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class PFedMe(Method):
    lam: Annotated[float, Ge(0), "pull between the personal and the global model"] = 15.
    K: Annotated[int, Ge(1), "steps of the personal model per batch"] = 5
    lr_p: Annotated[float, Gt(0), "learning rate of the personal model"] = .01
    beta: Annotated[float, Gt(0), "share of the way that the server moves to the mean"] = 1.

    def __post_init__(self) -> None:
        refuse_overshoot(self.lr_p, self.lam, "w")

    title = "pFedMe"
    paper = "Dinh et al., NeurIPS 2020"
    judged_by = "theta_i, the personal model (after local training: w_i)"
    serves_newcomers = "theta after a round from w, as every client"

    def init(self, n: int) -> tuple[Shared, Mine]:
        return Shared(self.model.start), Mine(self.model.start)

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        theta, w = descend_on_envelope(self.model, shared.w, data, self.lam, self.lr_p, self.K)
        return Mine(theta), Up(w)

    def serve_newcomer(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return self.client(shared, mine, data)[0].theta

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        mean = up.w.mean(who.sizes)
        return Shared(take_statistics((1 - self.beta) * shared.w + self.beta * mean, mean, self.model.buffers))

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return mine.theta

    def trained(self, shared: Shared, mine: Mine, up: Up) -> Tensor:
        return up.w
