"""Per-FedAvg, Fallah et al., NeurIPS 2020: a global model from which a single gradient step suits each client.

Objective: min over w of sum_i (n_i / n) f_i(w - alpha grad f_i(w)). Each local step draws independent batches b1, b2:
    u = w - alpha grad f(w; b1),    w <- w - beta (I - alpha H) grad f(u; b2).
`order: 1` sets H = 0. `order: 2` uses a third batch b3 and finite differences in place of the Hessian:
    H g = (grad f(w + delta g; b3) - grad f(w - delta g; b3)) / (2 delta),    g = grad f(u; b2).
Departures. The average is weighted by n_i. A round is E epochs of steps on b1 and b2. PFLlib, the code behind the
tables of FedAH and FedMHC, goes through the data twice a round and takes b1 and b2 from one pass, which makes as many
steps. Local steps are plain: they ignore the run's momentum, and other settings of the optimizer are refused. A client
is evaluated after one step alpha on one batch of its training data.
Defaults. alpha and beta are the run's learning rate. None was tuned here."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, TypeAlias

from torch import Tensor

from fedmpi.method import WHOLE, ClientData, Method, Nothing, Participants, RowsByField
from fedmpi.settings import Ge, Gt

# Name the draws of b1, b3 and the batch for evaluation. b2 are the round's own batches, so that alpha = 0 is FedAvg
INNER_STREAM, THIRD_STREAM, EVALUATION_STREAM = 1, 2, 3

Gradient: TypeAlias = Callable[..., Tensor]


class Shared(NamedTuple):
    """The server's state: the global model."""
    # (d,) the global model
    w: Annotated[Tensor, WHOLE]


class Up(NamedTuple):
    """What a participant sends: its model after local training."""
    # (d,) the model after local training
    w: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class PerFedAvg(Method):
    alpha: Annotated[float | None, Ge(0), "rate of the step that adapts to a client; null: the learning rate"] = None
    beta: Annotated[float | None, Gt(0), "rate of the steps of w; null: the learning rate"] = None
    order: Annotated[Literal[1, 2], "1 is first order, 2 is Hessian-free"] = 1
    delta: Annotated[float, Gt(0), "length, in gradients, of the differences that replace the Hessian"] = 1e-3

    title = "Per-FedAvg"
    paper = "Fallah et al., NeurIPS 2020"
    judged_by = "w after one SGD step on one of the client's training batches (unadapted: w)"
    serves_newcomers = "the global model after a step on one batch, as every client"

    def __post_init__(self) -> None:
        if self.order == 1 and self.delta != PerFedAvg.delta:
            raise ValueError(f"delta = {self.delta}: it belongs to order 2; set order to 2, or leave delta out")

    def init(self, n: int) -> tuple[Shared, Nothing]:
        return Shared(self.model.start), Nothing()

    def client(self, shared: Shared, mine: Nothing, data: ClientData) -> tuple[Nothing, Up]:
        alpha, beta = self.rate_or_default(self.alpha, data), self.rate_or_default(self.beta, data)

        def step(state: tuple[Tensor], outer: Gradient, inner: Gradient,
                 third: Gradient | None = None) -> tuple[Tensor]:
            w, = state
            g = outer(self.model, w - alpha * inner(self.model, w))
            if third:
                up, down = third(self.model, w + self.delta * g), third(self.model, w - self.delta * g)
                g = g - alpha * (up - down) / (2 * self.delta)
            return (w - beta * g,)
        w, = data.scan(step, (shared.w,), streams=(INNER_STREAM, THIRD_STREAM)[:self.order])
        return mine, Up(w)

    def rate_or_default(self, given: float | None, data: ClientData) -> float:
        """Return a rate that is given, else the run's learning rate."""
        return data.lr if given is None else given

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        return Shared(up.w.mean(who.sizes))

    def personal(self, shared: Shared, mine: Nothing, data: ClientData) -> Tensor:
        batch = data.with_batches(1, EVALUATION_STREAM, steps=1)
        return batch.descend(self.model, shared.w, lr=self.rate_or_default(self.alpha, data), momentum=0.)

    def unadapted(self, shared: Shared, mine: Nothing) -> Tensor:
        return shared.w
