"""FedMHC, Zheng et al., 2024: clustered heads on one shared extractor, and a personal model that is pulled to them.

Objective: min over theta_i of f_i(theta_i) + lam/2 ||theta_i - w_i||^2, where w_i = (phi, H_m). m is the group whose
head fits client i best, and H_1..H_M are the k-means centres of the clients' heads (eqs. 4-14, algorithm 1).
Client: trains the downloaded w_i, which it sends, and theta_i, which it keeps, on the same batches. Server: phi is the
plain mean of the phi_i, and k-means counts all heads alike.
`anchor: global` pulls theta_i to w as downloaded (eq. 9, which prints the norm without its square). `anchor: local`
pulls it to the moving w_i (line 11 of algorithm 1), in SGD steps with the run's momentum; other settings of the
optimizer are refused.
New clients. The paper says nothing of them. Ours choose m by eq. 5, and train theta for a round by eq. 9 from
(phi, H_m).
Departures. All heads start equal, because k-means needs a common start: in the first round every client takes H_1. From
then on k-means starts from the current H, so that it needs few iterations (figure 3 d). A cluster without heads keeps
its own while some clients do not take part, and with `mini_batch`; if all take part, scikit-learn moves it to a far
head.
Defaults. The paper gives neither E nor lam. On validation samples, lam = .01, .1, 1 gave 27.1, 26.3, 20.9 % (CIFAR-100,
Dirichlet .1, cnn4, 4 rounds), and lam = .01, .1, .3 gave 90.7, 90.6, 89.8 % (digits, 40 rounds, 3 seeds). After 200
rounds on the digits (jobs/results/strengths_fedmhc), lam = .1, 1, 5, 15 gave 97.4, 97.1, 96.4, 96.0 % with Dirichlet
.1, and 88.4, 93.4, 94.3, 95.3 % with planted groups of four classes a client, where theta_i waits for the extractor
that the pull brings it. After 30 rounds on a tenth of CIFAR-100 (Dirichlet .1, cnn4, 2 seeds) they gave 24.0, 19.0,
15.2, 13.0 %. No strength is best on all; the default of .1 is for clients that differ."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedmpi.clustering.kmeans_and_linkage import choose_start_centres, compute_mean_distance, kmeans
from fedmpi.method import BASE, HEAD, WHOLE, ClientData, Method, Participants, RowsByField, TrainSettings
from fedmpi.methods._proximal import refuse_strong_pull
from fedmpi.models.slices import zero_statistics
from fedmpi.models.tables import table_row
from fedmpi.settings import Ge, ModelCount


class Shared(NamedTuple):
    """The server's state: the feature extractor that all clients share, and a head for each cluster."""
    # (d - h,) feature extractor
    phi: Annotated[Tensor, BASE]
    # (M, h) a head per cluster
    heads: Annotated[Tensor, HEAD]


class Mine(NamedTuple):
    """What a client keeps between rounds: its personal model."""
    # (d,) the personal model
    theta: Annotated[Tensor, WHOLE]


class Up(NamedTuple):
    """What a participant sends: its group's model after local training."""
    # (d,) the group's model after local training
    w: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class FedMHC(Method):
    M: Annotated[ModelCount, "number of clusters of heads"] = 4
    lam: Annotated[float, Ge(0), "pull of the personal model towards its anchor"] = .1
    anchor: Annotated[Literal["global", "local"], "what theta is pulled to: the downloaded w, or the w that is "
                      "trained beside it"] = "global"
    mini_batch: Annotated[int, Ge(0), "heads in a mini-batch of k-means, for thousands of clients; 0 takes all "
                          "heads"] = 0

    title = "FedMHC"
    paper = "Zheng et al., 2024"
    judged_by = "theta_i, the personal model"
    serves_newcomers = "theta trained for a round from (phi, H_m), and pulled to it"
    # Heads are means that k-means computes
    supports_robust_mean = False

    def init(self, n: int) -> tuple[Shared, Mine]:
        phi, h = self.model.start[self.model.phi], self.model.start[self.model.h]
        return Shared(phi, h.repeat(self.M, 1)), Mine(self.model.start)

    def check(self, train: TrainSettings) -> None:
        refuse_strong_pull(train, "lam", self.lam, "its anchor")

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        w = self.model.join(shared.phi, table_row(shared.heads, self.choose_group(shared, data)))
        if self.anchor == "local":
            return self.train_side_by_side(w, mine.theta, data)
        theta = data.descend(self.model, mine.theta, pull=[(w, self.lam, None)])
        return Mine(theta), Up(data.descend(self.model, w))

    def serve_newcomer(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        w = self.model.join(shared.phi, table_row(shared.heads, self.choose_group(shared, data)))
        if self.anchor == "local":
            return self.train_side_by_side(w, w, data)[0].theta
        return data.descend(self.model, w, pull=[(w, self.lam, None)])

    def choose_group(self, shared: Shared, data: ClientData) -> Tensor:
        """Return m, (): the head that fits the client's training samples best (eq. 5)."""
        features = data.with_features(self.model.base, shared.phi)
        return features.choose_model(self.model.head, shared.heads)

    def train_side_by_side(self, w: Tensor, theta: Tensor, data: ClientData) -> tuple[Mine, Up]:
        """Train w and theta in turns, theta pulled to the w that moves beside it (algorithm 1, line 11)."""
        def step(state: tuple[Tensor, ...], grad: Callable[..., Tensor]) -> tuple[Tensor, ...]:
            w, theta, u, v = state
            # w's gradient comes last, so that the client keeps the running statistics of the model that it shares.
            g = grad(self.model, theta)
            u = data.momentum * u + grad(self.model, w)
            w = w - data.lr * u
            v = data.momentum * v + (g + self.lam * zero_statistics(theta - w, self.model.buffers))
            return w, theta - data.lr * v, u, v
        w, theta, _, _ = data.scan(step, (w, theta, torch.zeros_like(w), torch.zeros_like(theta)))
        return Mine(theta), Up(w)

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        h = up.w[self.model.h].gather()
        points, starts = (zero_statistics(heads, self.model.head.buffers) for heads in (h, shared.heads))
        found = kmeans(points, self.M, start=choose_start_centres(starts), seed=(who.seed, who.round),
                       batch=self.mini_batch, keep_empty=who.some_are_absent)
        heads = found.centres(h, old=shared.heads)
        who.log(clusters=found.labels, k=self.M, iterations=found.iterations,
                distance=compute_mean_distance(points, found.labels))
        return Shared(up.w[self.model.phi].mean(), heads)

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return mine.theta
