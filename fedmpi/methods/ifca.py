"""IFCA, Ghosh et al., NeurIPS 2020: each client trains that one of k models which fits its data best.

Objective: min over w_1..w_k of sum_i min_j f_i(w_j).
Client: z_i = argmin_j f_i(w_j) on its training data, then E epochs from w_z. Server: w_j is the mean of its members'
models; a cluster without members keeps its model.
With `shared_body` (the paper's weight sharing) the clusters differ in their heads alone, and the body is the mean over
all participants. `average` is for Fed-CAM (Ma et al., 2023). `mean` weights the members by their samples. `share` is
its eq. 6: the server moves w_j to (1 - s_j) w_j + sum_i (n_i / n) w_i over its members, where n counts the samples of
all participants and s_j is the members' share of them.
Departures. There is one draw of k independent starts; the paper restarts several times, and for FEMNIST it starts from
a trained network. So the first choice is by the losses of untrained networks, and on CIFAR-100 with Dirichlet .1 no
client moved in the 99 rounds after it (jobs/results/column_cifar100).
BatchNorm. A client that keeps its running statistics (model.running_stats = local) has those of one cluster alone, and
would measure the losses of all clusters with them. So IFCA needs averaged ones, unless `shared_body` holds them.
Defaults. k = 5 was not tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmpi.errors import BadInput
from fedmpi.method import BASE, HEAD, WHOLE, ClientData, Method, Nothing, Participants, RowsByField, Weights
from fedmpi.models.flat import Model, Net
from fedmpi.models.slices import AVOID_STATISTICS
from fedmpi.models.tables import table_row
from fedmpi.settings import ModelCount


class Shared(NamedTuple):
    """The server's state: the clusters' models, in two parts with `shared_body`."""
    # (p,) the body that all clusters share; empty without `shared_body`
    phi: Annotated[Tensor, BASE]
    # (k, d - p) the rest of every cluster's model
    parts: Annotated[Tensor, WHOLE, HEAD]


class Up(NamedTuple):
    """What a participant sends: its cluster's model after local training, and which cluster that is."""
    # (d,) the cluster's model after local training
    w: Annotated[Tensor, WHOLE]
    # () the cluster that it chose
    z: Tensor


@dataclass(frozen=True)
class IFCA(Method):
    k: Annotated[ModelCount, "number of clusters"] = 5
    shared_body: Annotated[bool, "clusters have a head of their own and share all other layers"] = False
    average: Annotated[Literal["equal", "mean", "share"], "plain mean of the members, mean weighted by samples, or "
                       "eq. 6 of Fed-CAM"] = "equal"

    title = "IFCA"
    paper = "Ghosh et al., NeurIPS 2020"
    judged_by = "the cluster model of least training loss (after local training: w_i)"
    serves_newcomers = "the cluster model of least training loss, as every client"

    def with_model(self, model: Model) -> Method:
        own = model.head if self.shared_body else model
        if own.buffers and model.policy == "local":
            raise BadInput(f"model.running_stats = local: clients of {self.title} choose among models, each of which "
                           f"needs statistics of its own; set model.running_stats = average, or {AVOID_STATISTICS}")
        return super().with_model(model)

    @property
    def cut(self) -> int:
        """Return the position in w at which the clusters' own part begins."""
        return self.model.phi.stop if self.shared_body else 0

    def init(self, n: int) -> tuple[Shared, Nothing]:
        starts = self.model.starts(self.k)
        return Shared(starts[0, :self.cut].clone(), starts[:, self.cut:].clone()), Nothing()

    def choose_cluster(self, shared: Shared, data: ClientData) -> Tensor:
        """Return z_i, the cluster that fits the client's training data best."""
        net: Net = self.model
        if self.shared_body:
            data, net = data.with_features(self.model.base, shared.phi), self.model.head
        return data.choose_model(net, shared.parts)

    def find_start_model(self, shared: Shared, mine: Nothing, up: Up, data: ClientData) -> Tensor:
        """Return the model that a client's local training began from."""
        return self.model.join(shared.phi, table_row(shared.parts, up.z))

    def client(self, shared: Shared, mine: Nothing, data: ClientData) -> tuple[Nothing, Up]:
        z = self.choose_cluster(shared, data)
        return mine, Up(data.descend(self.model, self.model.join(shared.phi, table_row(shared.parts, z))), z)

    def serve_newcomer(self, shared: Shared, mine: Nothing, data: ClientData) -> Weights:
        return IFCA.personal(self, shared, mine, data)

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        z = up.z.gather().flatten()
        n = None if self.average == "equal" else who.sizes
        parts = up.w[self.cut:].mean_by(z, self.k, old=shared.parts, weight=n)
        blocks = (self.model.head if self.shared_body else self.model).trainable
        who.log(clusters=z.numpy(), k=self.k, distance=float(up.w[self.cut:].distances(z, parts, blocks).mean()))
        if self.average == "share":
            s = np.bincount(z, who.sizes, minlength=self.k) / who.sizes.sum()
            parts = shared.parts.lerp(parts, torch.from_numpy(s).to(parts)[:, None])
        return Shared(up.w[:self.cut].mean(n) if self.cut else shared.phi, parts)

    def personal(self, shared: Shared, mine: Nothing, data: ClientData) -> Tensor:
        return self.model.join(shared.phi, table_row(shared.parts, self.choose_cluster(shared, data)))

    def trained(self, shared: Shared, mine: Nothing, up: Up) -> Tensor:
        return up.w
