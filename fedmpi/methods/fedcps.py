"""FedCPS, Yang et al., 2025: clients choose a cluster by their loss; the fewer samples one has, the more it is pulled.

A client trains from its cluster's model and is pulled back to it. All clusters share the first layers (the base).
Objective: min over w_i of f_i(w_i) + lam_i / 2 ||w_i - (base, theta_j)||^2, where j = argmin_j f_i(base, theta_j), and
lam_i = sigma_i^2 / (n_i^2 tau_j^2) (eqs. 1-5). sigma_i^2 is the variance of the batch gradients that the client saw
when it last took part. tau_j^2 is the mean squared distance of the members' models from the cluster model that they
were given in the previous round.
Server: theta_j is the mean over cluster j's members, and the base is the mean over all participants.
Departures. lam_i is multiplied by a factor with which a client of median n_i, sigma^2 and tau^2 among the latest
round's participants has `lam`. As training settles, tau^2 falls faster than sigma^2, and with a constant factor every
lam_i would grow to `lam_max` (Fashion-MNIST, 60 rounds: .14 to 1.5 for all but few-shot clients). Before these numbers
are known, and for a client that saw a single batch, lam_i = `lam`. The signs of Delta disagree between algorithms 1 and
2; both mean the mean of the members' w. Clusters are not averaged with each other (section 4.3; algorithm 2, line 17
does it). Sections 3.4 and 4.4 leave personal layers with each client, but section 4.1 and the algorithms have one
version per cluster: with `personal_layers: client` a client goes on from its own last layers, pulled to its cluster's.
On the subset by which it chooses a cluster a client trains, too; the paper has another one for the gradients (below
eq. 4). Less data means a stronger pull, as by eq. 3; a sentence of section 3.2 has it the other way round.
Short last batches, which `train.drop_last` leaves out, count in sigma^2 as others do and raise it.
An empty cluster keeps its theta_j and tau_j^2. Identities are final once all clients' are known and none has changed
for `stable` rounds; from then on clients receive their own cluster's part alone.
New clients. The paper says nothing of them. Ours choose a cluster as every client does, and train for a round from it,
with the pull `lam`, because their sigma^2 is unknown.
Defaults. The paper gives no lam. On validation samples (Fashion-MNIST, 30 % few-shot clients, LeNet-5, 60 rounds, one
seed: jobs/results/strengths_fedcps), lam = .01, .1, 1 gave 82.7, 81.8, 79.6 % with lam_max = 10, and lam_max = .1, 1,
10 gave 82.4, 82.5, 81.8 % with lam = .1. The defaults stay, since one seed cannot tell the best of them apart."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmpi.clustering.kmeans_and_linkage import replace_entries
from fedmpi.method import WHOLE, ClientData, Method, Participants, RowsByField, TrainSettings, nbytes, set_by_with_model
from fedmpi.methods._proximal import refuse_strong_pull
from fedmpi.models.flat import Model
from fedmpi.models.slices import zero_statistics
from fedmpi.models.tables import table_row
from fedmpi.models.tail import Tail, cut_tail
from fedmpi.settings import Ge, Gt, Le, ModelCount

# Names the draw of the subset on which a client chooses its cluster
IDENTITY_STREAM = 1


class Shared(NamedTuple):
    """The server's state: the base, the clusters' parts, the clients' identities, and what pulls are computed from."""
    # (d - p,) the base, which all clusters share
    base: Tensor
    # (k, p) the part that each cluster has of its own
    theta: Tensor
    # (k,) tau^2 of each cluster; 0 if it is unknown
    tau2: Tensor
    # () factor of eq. 3; 0 if it is unknown
    scale: Tensor
    # (N,) identity of each client; -1 if it is unknown
    ID: Tensor
    # () rounds in which all identities were known and none changed
    calm: Tensor


class Mine(NamedTuple):
    """What a client keeps between rounds: its model, and the variance of its batch gradients."""
    # (d,)
    w: Annotated[Tensor, WHOLE]
    # () sigma^2 of its last round; 0 if it is unknown
    sigma2: Tensor


class Up(NamedTuple):
    """What a participant sends: its model, the cluster that it chose, and the numbers of which pulls are computed."""
    # (d,)
    w: Annotated[Tensor, WHOLE]
    # () identity: the cluster that it chose
    j: Tensor
    # (3,) lam, sigma^2, and the squared distance from the cluster model
    told: Tensor


@dataclass(frozen=True)
class FedCPS(Method):
    k: Annotated[ModelCount, "number of clusters"] = 3
    layers: Annotated[int, Ge(1), "number of last blocks of the network that each cluster has of its own"] = 2
    lam: Annotated[float, Ge(0), "pull of a client of median size; 0: no pull at all"] = .1
    lam_min: Annotated[float, Ge(0), "smallest pull"] = .001
    lam_max: Annotated[float, Ge(0), "largest pull"] = 10.
    personal_layers: Annotated[Literal["cluster", "client"], "whose last layers a client goes on from"] = "cluster"
    subset: Annotated[float, Gt(0), Le(1), "share of its samples, drawn every round, on which a client chooses"] = .5
    stable: Annotated[int, Ge(1), "number of rounds without a change after which identities are final"] = 10
    # The network's last blocks, which each cluster has of its own
    tail: Tail = set_by_with_model()

    title = "FedCPS"
    paper = "Yang et al., 2025"
    judged_by = "w_i, its model after its last local training"
    serves_newcomers = "w trained for a round from the cluster of least training loss, and pulled to it"
    supports_local_batchnorm = False

    def __post_init__(self) -> None:
        if self.lam_min > self.lam_max:
            raise ValueError(f"lam_min = {self.lam_min}: more than lam_max = {self.lam_max}; lower it")
        if self.lam and not self.lam_min <= self.lam <= self.lam_max:
            raise ValueError(f"lam = {self.lam}: not between lam_min = {self.lam_min} and lam_max = {self.lam_max}, "
                             "the limits of every client's pull; move it or them")

    def with_model(self, model: Model) -> Method:
        return replace(self, model=model, tail=cut_tail(model, self.layers, "method.layers"))

    def check(self, train: TrainSettings) -> None:
        refuse_strong_pull(train, "lam_max", self.lam_max if self.lam else 0., "theta_j")

    def init(self, n: int) -> tuple[Shared, Mine]:
        w = self.model.starts(self.k)
        cut = self.tail.block.start
        zeros = w.new_zeros
        return (Shared(w[0, :cut], w[:, cut:], zeros(self.k), zeros(()), torch.full((n,), -1, device=w.device),
                       torch.tensor(0, device=w.device)), Mine(w[0], zeros(())))

    def stages(self, shared: Shared, rounds: int) -> list[tuple[int, Shared]]:
        """Return the rounds in which clients choose a cluster; nobody knows when their choices are final."""
        return [(rounds, shared), (0, shared._replace(calm=torch.tensor(self.stable)))]

    def stage_of(self, shared: Shared) -> int:
        return int(self.is_final(shared))

    def is_final(self, shared: Shared) -> bool:
        """Say whether the identities are final, so that nobody chooses any more."""
        return bool(shared.calm >= self.stable)

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        j = self.choose_cluster(shared, data)
        theta = self.model.join(shared.base, table_row(shared.theta, j))
        lam = self.compute_pull(shared, mine, j, data.n)
        start = self.choose_start(shared, mine, theta)
        w, sigma2 = data.descend(self.model, start, pull=[(theta, lam, None)], spread=True)
        told = torch.stack([lam, sigma2, data.one_by_one(
            squared_distance, *(zero_statistics(v, self.model.buffers) for v in (w, theta)))])
        return Mine(w, sigma2), Up(w.clone(), j, told)

    def choose_start(self, shared: Shared, mine: Mine, theta: Tensor) -> Tensor:
        """Return the model (d,) that a client's round begins from: its cluster's, or with last layers of its own."""
        return self.model.join(shared.base, mine.w[len(shared.base):]) if self.personal_layers == "client" else theta

    def find_start_model(self, shared: Shared, mine: Mine, up: Up, data: ClientData) -> Tensor:
        """Return the model that the round began from, for _cam.CAM."""
        return self.choose_start(shared, mine, self.model.join(shared.base, table_row(shared.theta, up.j)))

    def choose_cluster(self, shared: Shared, data: ClientData) -> Tensor:
        """Return j, (): the client's cluster."""
        if self.is_final(shared):
            return table_row(shared.ID, data.id).clone()
        return self.find_cluster(shared, data)

    def find_cluster(self, shared: Shared, data: ClientData) -> Tensor:
        """Return the cluster of least loss, ()."""
        chosen_by = data.subset(self.subset, IDENTITY_STREAM)
        return self.tail.choose_part(chosen_by, shared.base, shared.theta)

    def serve_newcomer(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        theta = self.model.join(shared.base, table_row(shared.theta, self.find_cluster(shared, data)))
        return data.descend(self.model, theta, pull=[(theta, self.lam, None)])

    def compute_pull(self, shared: Shared, mine: Mine, j: Tensor, n: int | Tensor) -> Tensor:
        """Return lam_i (eq. 3)."""
        tau2 = table_row(shared.tau2, j)
        lam = shared.scale * mine.sigma2 / (n * n * tau2)
        known = (shared.scale > 0) & (mine.sigma2 > 0) & (tau2 > 0)
        return torch.where(known, lam.clamp(self.lam_min, self.lam_max), self.lam)

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        cut = self.tail.block.start
        j = up.j.gather().flatten().numpy()
        lam, sigma2 = up.told[:2].gather().double().numpy().T
        tau2 = up.told[2:].mean_by(j, self.k, shared.tau2[:, None]).flatten()
        who.log(clusters=j, k=self.k)
        who.log_per_client(lam=lam)
        ID = replace_entries(shared.ID, who.ids, j)
        settled = (ID >= 0).all() and (ID == shared.ID).all()
        return Shared(up.w[:cut].mean(), up.w[cut:].mean_by(j, self.k, shared.theta), tau2,
                      self.compute_scale(shared.scale, who.sizes, sigma2, tau2[j].numpy()), ID,
                      shared.calm + 1 if settled else torch.tensor(0))

    def compute_scale(self, old: Tensor, n: np.ndarray, sigma2: np.ndarray, tau2: np.ndarray) -> Tensor:
        """Return the factor of eq. 3 that gives `lam` to a participant of median n, sigma^2 and tau^2."""
        known = (sigma2 > 0) & (tau2 > 0)
        if not known.any():
            return old
        typical = np.median(sigma2[known]) / (np.median(n) ** 2 * np.median(tau2[known]))
        return torch.tensor(self.lam / typical, dtype=torch.float32)

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return mine.w

    def traffic(self, shared: Shared, up: Up) -> tuple[int, int]:
        """Count the base, all parts (in final rounds only the client's own), the tau^2 of each, and the factor."""
        parts = 1 if self.is_final(shared) else self.k
        return nbytes([shared.base, shared.scale]) + parts * nbytes([shared.theta[0], shared.tau2[0]]), nbytes(up)


def squared_distance(w: Tensor, theta: Tensor) -> Tensor:
    """Return ||w - theta||^2, ()."""
    return (w - theta).square().sum()
