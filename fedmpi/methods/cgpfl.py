"""CGPFL, Tang et al., IJCAI 2022: pFedMe inside K contexts, cluster-wise models to which personal models are pulled.

Objective: min over the contexts Omega_k of sum_k sum_{i in k} F_i(Omega_k), where F_i(omega) = min over theta of
f_i(theta) + lam/2 ||theta - omega||^2.
Client, for each batch: `inner` steps of theta <- theta - lr_p (grad f(theta; b) + lam (theta - omega)), then one step
omega <- omega - eta lam (omega - theta).
Server: k-means on the omega_i, then Omega_k <- (1 - a) Omega_k + a mean of its members.
Departures. k-means starts from the contexts as they are (by k-means++ the first time, when all are equal). An empty
context keeps its model while some clients do not take part; if all do, scikit-learn moves it to a far client's. theta
starts each round at omega and carries over from batch to batch. A client that never took part starts from the mean of
the contexts that have had members. Where contexts are far apart, it may then join the one nearest to that mean,
whatever its data are. If fewer clients than contexts take part in the first round, clients that take part for the
first time later found the others, those with the farthest models first. Whole models are clustered as points with the
same distances, which follow from the inner products of all omega_i. All steps are plain: they ignore the run's
momentum, and other settings of the optimizer are refused. lr_p changes over the rounds as eta does.
New clients. The paper says nothing of them. Ours train for a round from that mean of the contexts, as a client does
that never took part, then for a round from the nearest of these to the result.
Defaults. lam, inner and lr_p are those of pFedMe; none was tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedmpi.clustering.kmeans_and_linkage import cluster_models, replace_entries
from fedmpi.method import WHOLE, ClientData, Method, Participants, RowsByField, nbytes
from fedmpi.methods._proximal import descend_on_envelope, refuse_overshoot
from fedmpi.models.slices import zero_statistics
from fedmpi.models.tables import average_used_rows, find_nearest_used, list_used_rows, table_row, table_row_or_mean
from fedmpi.settings import Ge, Gt, Le, ModelCount


class Shared(NamedTuple):
    """The server's state: the contexts, and the context of each client."""
    # (K, d) contexts
    Omega: Annotated[Tensor, WHOLE]
    # (N,) int64, the context of every client; -1 if it never took part
    context: Tensor


class Mine(NamedTuple):
    """What a client keeps between rounds: its personal model."""
    # (d,) the personal model
    theta: Annotated[Tensor, WHOLE]


class Up(NamedTuple):
    """What a participant sends: its trained copy of its context, and its squared distances to all contexts."""
    # (d,)
    omega: Annotated[Tensor, WHOLE]
    # (K,) squared distances to the contexts; the ledger leaves them out, because the server could compute them
    squares: Tensor


@dataclass(frozen=True)
class CGPFL(Method):
    K: Annotated[ModelCount, "number of contexts"] = 4
    lam: Annotated[float, Ge(0), "pull between the personal model and its context"] = 15.
    inner: Annotated[int, Ge(1), "steps of the personal model per batch"] = 5
    lr_p: Annotated[float, Gt(0), "learning rate of the personal model"] = .01
    a: Annotated[float, Gt(0), Le(1), "share of the way that a context moves to the mean of its members"] = 1.

    def __post_init__(self) -> None:
        refuse_overshoot(self.lr_p, self.lam, "its context")

    title = "CGPFL"
    paper = "Tang et al., IJCAI 2022"
    judged_by = "theta_i, the personal model"
    serves_newcomers = "theta after a round from the context nearest to its model after a round"
    supports_local_batchnorm = False

    def init(self, n: int) -> tuple[Shared, Mine]:
        return Shared(self.model.start.repeat(self.K, 1), torch.full((n,), -1)), Mine(self.model.start)

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        theta, omega = self.train_from(self.find_context(shared, data), data)
        return Mine(theta), Up(omega, self.measure_squares(shared, omega))

    def find_context(self, shared: Shared, data: ClientData) -> Tensor:
        """Return the client's context (d,); the mean of the used ones if it never took part."""
        k = table_row(shared.context, data.id)
        return table_row_or_mean(shared.Omega, k, lambda: self.list_used(shared), data.any_client)

    def list_used(self, shared: Shared) -> Tensor:
        """Return which contexts have had members, (K,) bool."""
        return list_used_rows(shared.Omega, self.model.start, self.model.buffers)

    def find_start_model(self, shared: Shared, mine: Mine, up: Up, data: ClientData) -> Tensor:
        """Return the model that the round began from, for _cam.CAM."""
        return self.find_context(shared, data)

    def train_from(self, omega: Tensor, data: ClientData) -> tuple[Tensor, Tensor]:
        """Return theta and omega after local training from this context."""
        return descend_on_envelope(self.model, omega, data, self.lam, self.lr_p, self.inner)

    def measure_squares(self, shared: Shared, omega: Tensor) -> Tensor:
        """Return the squared distances of a model (d,) from all contexts, (K,)."""
        return (zero_statistics(shared.Omega - omega, self.model.buffers) ** 2).sum(1)

    def serve_newcomer(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        used = self.list_used(shared)
        _, omega = self.train_from(average_used_rows(shared.Omega, used), data)
        nearest = find_nearest_used(self.measure_squares(shared, omega), used)
        return self.train_from(table_row(shared.Omega, nearest), data)[0]

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        found = cluster_models(up.omega, up.squares, shared.Omega, (who.seed, who.round),
                               keep_empty=who.some_are_absent, blocks=self.model.trainable,
                               unused=~self.list_used(shared), founders=shared.context[who.ids] < 0)
        means = up.omega.mean_by(found.labels, self.K, shared.Omega)
        who.log(clusters=found.labels, k=self.K, iterations=found.iterations, distance=found.distance)
        return Shared(torch.lerp(shared.Omega, means, self.a), replace_entries(shared.context, who.ids, found.labels))

    def traffic(self, shared: Shared, up: Up) -> tuple[int, int]:
        # Its context goes down, and omega_i up
        return nbytes((self.model.start,)), nbytes((up.omega,))

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return mine.theta
