"""CFL, Sattler et al., TNNLS 2020 (CPFL in FedMHC's tables): clusters are split in two when their updates disagree.

Objective: min over theta_c of sum_{i in c} f_i(theta_c) for every cluster c of a partition that is itself found.
Server: if ||mean dW|| < eps1 and max ||dW_i|| > eps2 in a cluster, its model hardly moves although its members' updates
dW_i are long. Complete linkage on cos(dW_i, dW_j) then splits the cluster, and both children start from its model. All
other clusters take the mean of their members' updates. No cluster is split in the first `after` rounds, or with fewer
than three participants.
Reported: the number of clusters; for each cluster ||mean dW|| and max ||dW_i|| (0 without participants); and the mean
distance of w_i from the mean of its cluster, before that is split.
Departures. The updates of the round of a split move neither child; public code often lets each child take the mean of
its members' updates at once. The number of models is limited to M; no cluster is split beyond it. The paper lets every
client take part in every round. Here members that do not take part in the round of a split stay with the larger child,
from which they can be split later.
New clients. In the paper a new client walks down the tree of splits by the cosines of its update with those of the old
clients, which the server would have to keep. Here it takes the cluster of least training loss, as in IFCA.
Defaults. eps1 and eps2 are fractions of the largest norm of an update in the first round, times the learning rate of a
round over that of the first: the length of an update goes about with the rate. They were chosen on the digits: five
planted groups are found exactly, and 20 IID clients stay together for 50 rounds. The paper's .4 and 1.6 are norms for
one network on EMNIST, with which other set-ups never split: `{relative: false, eps1: .4, eps2: 1.6}`. A run that never
split is FedAvg with a plain mean, and a report marks it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedmpi.clustering.kmeans_and_linkage import split_in_two
from fedmpi.method import WHOLE, ClientData, Method, Nothing, Participants, RowsByField, nbytes
from fedmpi.models.slices import zero_statistics
from fedmpi.models.tables import find_lowest, table_row
from fedmpi.settings import Ge, ModelCount


class Shared(NamedTuple):
    """The server's state: the clusters' models, the cluster of each client, and the unit of relative thresholds."""
    # (M, d) a model per cluster
    models: Annotated[Tensor, WHOLE]
    # (N,) int64, the cluster of every client
    cluster: Tensor
    # () int64, the number of clusters
    count: Tensor
    # () norm of the largest update of the first round, divided by the `decay` of that round; 0 before it
    unit: Tensor


class Up(NamedTuple):
    """What a participant sends: its model after local training, and the norm of its update."""
    # (d,)
    w: Annotated[Tensor, WHOLE]
    # () norm of its update dW; the ledger leaves it out, because the server could compute it from w
    norm: Tensor


@dataclass(frozen=True)
class CFL(Method):
    M: Annotated[ModelCount, "largest number of models"] = 10
    eps1: Annotated[float, Ge(0), "a cluster is split if the norm of its mean update is below this"] = .3
    eps2: Annotated[float, Ge(0), "and if the largest norm of its members' updates is above this"] = .5
    relative: Annotated[bool, "eps1 and eps2 are fractions of the largest update's norm in the first round, "
                        "which goes with the learning rate"] = True
    after: Annotated[int, Ge(0), "rounds before the first split"] = 20

    title = "CFL"
    paper = "Sattler et al., TNNLS 2020"
    judged_by = "the model of its cluster (after local training: w_i)"
    serves_newcomers = "the model of the cluster of least training loss"
    supports_local_batchnorm = False
    needs_full_work = "compares the lengths of updates, which are shorter after fewer steps"

    def list_oddities(self, rounds: int) -> list[str]:
        if self.M == 1:
            return ["method.M = 1: no cluster is ever split, so that this is FedAvg with a plain mean; raise M"]
        if self.after < rounds:
            return []
        return [f"method.after = {self.after}: no cluster is split in any of rounds = {rounds}, so that this is FedAvg "
                "with a plain mean; lower after, or take more rounds"]

    def init(self, n: int) -> tuple[Shared, Nothing]:
        models = self.model.start.repeat(self.M, 1)
        cluster = torch.zeros(n, dtype=torch.int64)
        return Shared(models, cluster, torch.tensor(1), models.new_zeros(())), Nothing()

    def client(self, shared: Shared, mine: Nothing, data: ClientData) -> tuple[Nothing, Up]:
        w = table_row(shared.models, table_row(shared.cluster, data.id))
        new = data.descend(self.model, w)
        return mine, Up(new, zero_statistics(new - w, self.model.buffers).norm())

    def serve_newcomer(self, shared: Shared, mine: Nothing, data: ClientData) -> Tensor:
        losses = torch.stack([data.mean_loss(self.model, w) for w in shared.models])
        in_use = torch.arange(self.M, device=losses.device) < shared.count
        return table_row(shared.models, find_lowest(torch.where(in_use, losses, torch.inf)))

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        ids = torch.as_tensor(who.ids)
        norms = up.norm.gather().flatten()
        cluster = shared.cluster.clone()
        count = int(shared.count)
        unit = shared.unit if shared.unit > 0 else norms.max() / who.decay
        # Clusters of the participants in this round
        here = cluster[ids]
        models = up.w.mean_by(here, self.M, shared.models)
        moved = zero_statistics((models - shared.models)[:count], self.model.buffers)
        means = moved.norm(dim=1).tolist()
        largest = [float(max(norms[here == c], default=0.)) for c in range(count)]
        distance = float(up.w.distances(here, models[:count], self.model.trainable).mean())
        for c in range(len(largest)):
            if count < self.M and self.should_split(means[c], norms[here == c], unit * who.decay, who.round):
                members = torch.nonzero(here == c).flatten()
                dW = up.w.gram(shared.models[c], blocks=self.model.trainable)[members][:, members]
                leaving = members[torch.as_tensor(split_in_two(cosines_from_gram(dW)))]
                # Clusters go by client number, because a client's position differs from round to round
                cluster[ids[leaving]] = count
                models[c] = models[count] = shared.models[c]
                count += 1
        who.log(clusters=cluster[ids].numpy(), k=self.M, clusters_found=count, mean_update=means,
                largest_update=largest, distance=distance)
        return Shared(models, cluster, torch.tensor(count), unit)

    def should_split(self, mean: float, norms: Tensor, unit: Tensor, t: int) -> bool:
        """Say whether to split a cluster with this norm of its mean update and these norms of its members' updates."""
        scale = float(unit) if self.relative else 1.
        return (t >= self.after and len(norms) > 2 and mean < self.eps1 * scale
                and float(norms.max()) > self.eps2 * scale)

    def traffic(self, shared: Shared, up: Up) -> tuple[int, int]:
        # The cluster's model goes down, and the client's up
        return nbytes((self.model.start,)), nbytes((up.w,))

    def personal(self, shared: Shared, mine: Nothing, data: ClientData) -> Tensor:
        return table_row(shared.models, table_row(shared.cluster, data.id))

    def trained(self, shared: Shared, mine: Nothing, up: Up) -> Tensor:
        return up.w


def cosines_from_gram(gram: Tensor) -> Tensor:
    """Return the cosines between rows from their inner products."""
    norms = gram.diagonal().sqrt().clamp(min=1e-300)
    return gram / norms / norms[:, None]
