"""FeSEM, Xie et al. (Multi-Center Federated Learning), 2021: every client follows the centre nearest to its model.

Objective: min over the centres of sum_i min_j ||theta_i - Theta_j||^2, where the theta_i are the local models.
Client: E epochs of SGD from its own cluster's centre.
Server: assigns each model to the nearest centre by L2 and takes the mean of each centre's members, until no client
moves. The first centres are those of k-means++ after one local round (best of 10). A centre without members stays.
Cost. Exact k-means of whole models costs rank 0 a gram matrix: n^2 d multiply-adds and every participant's row once a
round. `layers` makes the rows shorter; the members' mean is still taken over all layers.
`keep` is the client side of FeSEM-CAM (Ma et al., 2023, eqs. 12 and 13): a client goes on from its own theta_i, pulled
to its centre by lam. `scale_by_share` puts the factor n_i / n that eq. 13 prints on the gradient. n counts the samples
of the participants of the round before, which is all that the server knows; in the first round the factor is 1.
New clients. The paper says nothing of them. Ours train for a round from the mean of the centres that have had members,
as a client in its first round without `keep`, and take the nearest of these by L2.
Departures. A client that has not taken part yet belongs to no cluster: it starts from the mean of the centres that
have had members (with `keep` from its own theta_i, which is the start of the run), and is evaluated with that mean.
Where centres are far apart, it may then join the one nearest to the mean, whatever its data are. If fewer clients than
clusters take part in the first round, clients that take part for the first time later found the other clusters, those
with the farthest models first. The ledger counts k models down, as FedMHC's table II does, though a client needs only
its own centre.
Defaults. None was tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedmpi.clustering.kmeans_and_linkage import (
    compute_mean_distance,
    embed_rows,
    find_first_equal,
    kmeans,
    replace_entries,
    seed_unused,
)
from fedmpi.errors import BadInput
from fedmpi.method import WHOLE, ClientData, Method, Nothing, Participants, RowsByField, TrainSettings, Weights, nbytes
from fedmpi.methods._proximal import refuse_strong_pull
from fedmpi.models.flat import Model
from fedmpi.models.slices import join_slices, remove_slices
from fedmpi.models.tables import average_used_rows, find_nearest_used, list_used_rows, table_row, table_row_or_mean
from fedmpi.settings import Ge, ModelCount

DistanceBlocks = Annotated[tuple[str, ...], "blocks on which distances are measured; linear: all fully connected ones; "
                           "empty: the whole model"]
RowWeights = Annotated[Literal["samples", "equal"], "weights of the rows: training samples, or all equal"]
CentrePull = Annotated[float, Ge(0), "pull of the local model towards its centre"]
# Random starts of the first k-means
TRIES = 10


class Shared(NamedTuple):
    """The server's state: the centres, the cluster of each client, and the latest participants' number of samples."""
    # (k, d) centres
    w: Annotated[Tensor, WHOLE]
    # (N,) the cluster of each client; -1 if it has none yet
    of: Tensor
    # () training samples of the latest participants
    n: Tensor


class Mine(NamedTuple):
    """What a client keeps between rounds: with `keep`, its own model."""
    # (d,) the client's own model, if `keep`
    theta: Annotated[Tensor, WHOLE]


class Up(NamedTuple):
    """What a participant sends: its model after local training."""
    # (d,) theta_i after local training
    w: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class FeSEM(Method):
    k: Annotated[ModelCount, "number of clusters"] = 5
    layers: DistanceBlocks = ()
    weights: RowWeights = "equal"
    keep: Annotated[bool, "clients go on from their own model and not from their centre"] = False
    lam: CentrePull = 0.
    scale_by_share: Annotated[bool, "the factor n_i / n of Fed-CAM's eq. 13 on the gradient"] = False

    title = "FeSEM"
    paper = "Xie et al., 2021"
    judged_by = "its own cluster's centre (after local training: theta_i)"
    serves_newcomers = "the centre nearest to its model after a round from the mean of the centres"

    def with_model(self, model: Model) -> Method:
        for name in {*self.layers} - {"linear"}:
            if name not in model.blocks:
                raise BadInput(f"method.layers: {name!r} is not part of this model; it can be linear, or one of its "
                               f"blocks {', '.join(b for b in model.blocks if '.' not in b)}")
        return super().with_model(model)

    def check(self, train: TrainSettings) -> None:
        refuse_strong_pull(train, "lam", self.lam, "its centre")

    @property
    def slices(self) -> list[slice]:
        """Return the blocks of w on which distances are measured."""
        names = [name for name, layer in self.model.module.named_modules() if isinstance(layer, nn.Linear)]
        chosen = [b for name in self.layers for b in (names if name == "linear" else [name])]
        parts = sorted((self.model.block(b) for b in dict.fromkeys(chosen)), key=lambda part: part.start)
        return remove_slices(join_slices(parts), self.model.buffers) or self.model.trainable

    def init(self, n: int) -> tuple[Shared, Mine | Nothing]:
        start = self.model.start
        shared = Shared(start.repeat(self.k, 1), torch.full((n,), -1, device=start.device), start.new_zeros(()))
        return shared, Mine(start) if self.keep else Nothing()

    def find_centre(self, shared: Shared, data: ClientData) -> tuple[Tensor, Tensor]:
        """Return the centre of the client's cluster, and whether it has one."""
        j = table_row(shared.of, data.id)
        return table_row_or_mean(shared.w, j, lambda: self.list_used(shared), data.any_client), j >= 0

    def list_used(self, shared: Shared) -> Tensor:
        """Return which centres have had members, (k,) bool."""
        return list_used_rows(shared.w, self.model.start, self.model.buffers)

    def find_start_model(self, shared: Shared, mine: Mine | Nothing, up: Up, data: ClientData) -> Tensor:
        """Return the model that a client's local training began from."""
        return mine.theta if isinstance(mine, Mine) else self.find_centre(shared, data)[0]

    def client(self, shared: Shared, mine: Mine | Nothing, data: ClientData) -> tuple[Mine | Nothing, Up]:
        centre, known = self.find_centre(shared, data)
        theta = mine.theta if isinstance(mine, Mine) else centre
        pull = [(centre, self.lam * known, None)] if self.lam else []
        if self.scale_by_share:
            share = torch.where(shared.n > 0, data.n / shared.n.clamp(min=1), 1.)
            theta = data.descend(self.compute_scaled_loss, theta, pull=pull, args=(share,))
        else:
            theta = data.descend(self.model, theta, pull=pull)
        return Mine(theta) if self.keep else mine, Up(theta)

    def compute_scaled_loss(self, w: Tensor, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """Return each sample's cross-entropy times the client's share n_i / n, (b,)."""
        return share * self.model.loss(w, x, y)

    def serve_newcomer(self, shared: Shared, mine: Mine | Nothing, data: ClientData) -> Weights:
        used = self.list_used(shared)
        theta = data.descend(self.model, average_used_rows(shared.w, used))
        apart = sum(((shared.w[:, part] - theta[part]) ** 2).sum(1) for part in self.slices)
        return table_row(shared.w, find_nearest_used(torch.as_tensor(apart), used))

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        weight = who.sizes if self.weights == "samples" else None
        points = embed_rows(up.w.gram(beside=shared.w, blocks=self.slices))
        rows, centres = points[:len(who.ids)], points[len(who.ids):]
        start = self.find_start_centres(shared, rows, centres, who)
        found = kmeans(rows, self.k, start, (who.seed, who.round + 1), weight, TRIES, keep_empty=True)
        who.log(clusters=found.labels, k=self.k, iterations=found.iterations,
                distance=compute_mean_distance(rows, found.labels, weight))
        return Shared(up.w.mean_by(found.labels, self.k, old=shared.w, weight=weight),
                      replace_entries(shared.of, who.ids, found.labels), torch.as_tensor(float(who.sizes.sum())))

    def find_start_centres(self, shared: Shared, rows: Tensor, centres: Tensor, who: Participants) -> Tensor | None:
        """Return the centres with which k-means starts, (k, m), from those that the server has; None if it has none."""
        if (shared.of < 0).all():
            return None
        # of equal centres, which clusters without a member have, the first one
        first = find_first_equal(torch.cat([shared.w[:, part] for part in self.slices], 1))
        without_cluster = shared.of[who.ids] < 0
        return seed_unused(rows[without_cluster], centres[first], ~self.list_used(shared))

    def traffic(self, shared: Shared, up: Up) -> tuple[int, int]:
        return nbytes(shared[:1]), nbytes(up)

    def personal(self, shared: Shared, mine: Mine | Nothing, data: ClientData) -> Tensor:
        return self.find_centre(shared, data)[0]

    def trained(self, shared: Shared, mine: Mine | Nothing, up: Up) -> Tensor:
        return up.w
