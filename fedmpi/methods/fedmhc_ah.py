"""FedMHC-AH, our own: FedAH's mix of heads, in which the head of a client's group replaces the global head.

Objective: min over the personal models of sum_i (n_i / n) f_i(phi, hhat_i), where hhat_i = h_i + (H_m - h_i) * W_i, and
W_i in [0, 1] is learned as in FedAH. m is the group whose head fits client i best, and H_1..H_M are the k-means centres
of the clients' heads, as in FedMHC. All clients share one extractor phi.
What comes from which method. From FedMHC: all heads start equal, m = argmin_j f_i(phi, H_j) on the training data, and
k-means, which counts all heads alike, starts from the current heads (what becomes of an empty cluster is said there).
From FedAH: all else, including means that are weighted by n_i, those of a cluster's heads, too, so that M = 1 is FedAH.
W_i stays with its client when the client changes its group.
Defaults. They are those of FedAH and FedMHC; none was tuned."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedmpi.clustering.kmeans_and_linkage import choose_start_centres, compute_mean_distance, kmeans
from fedmpi.method import BASE, HEAD, ClientData, Participants, RowsByField
from fedmpi.methods.fedah import FedAH, Mine
from fedmpi.models.slices import zero_statistics
from fedmpi.models.tables import table_row
from fedmpi.settings import ModelCount


class Shared(NamedTuple):
    """The server's state: the feature extractor that all clients share, and a head for each cluster."""
    # (d - h,) feature extractor
    phi: Annotated[Tensor, BASE]
    # (M, h) a head per cluster
    heads: Annotated[Tensor, HEAD]


@dataclass(frozen=True)
class FedMHCAH(FedAH):
    M: Annotated[ModelCount, "number of clusters of heads"] = 4

    title = "FedMHC-AH"
    paper = "our own: Zheng et al. and Zhou et al., 2024, combined"
    judged_by = "(phi, hhat_i), mixed anew with the head of the best group (after local training: (phi_i, h_i))"
    serves_newcomers = "(phi, hhat), its head the first one blended with that of the best group"

    def init(self, n: int) -> tuple[Shared, Mine]:
        phi, h = self.model.start[self.model.phi], self.model.start[self.model.h]
        return Shared(phi, h.repeat(self.M, 1)), Mine(h, torch.full_like(h, self.mix_start))

    def receive(self, shared: Shared, data: ClientData) -> tuple[Tensor, Tensor, ClientData]:
        features = data.with_features(self.model.base, shared.phi)
        best = features.choose_model(self.model.head, shared.heads)
        return shared.phi, table_row(shared.heads, best), features

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        sent = up.w[self.model.h]
        h, starts = (zero_statistics(heads, self.model.head.buffers) for heads in (sent.gather(), shared.heads))
        found = kmeans(h, self.M, start=choose_start_centres(starts), seed=(who.seed, who.round),
                       keep_empty=who.some_are_absent)
        heads = sent.mean_by(found.labels, self.M, shared.heads, who.sizes)
        who.log(clusters=found.labels, k=self.M, iterations=found.iterations,
                distance=compute_mean_distance(h, found.labels, who.sizes))
        return Shared(up.w[self.model.phi].mean(who.sizes), heads)
