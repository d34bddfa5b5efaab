"""FedGroup, Duan et al., ISPA 2021: static groups from the directions of the first updates, and FedAvg in each group.

Objective: min over the groups' models of sum_g sum_{i in g} (n_i / n_g) f_i(w_g).
In a warm-up round, 20 K random clients train from the common start. k-means clusters their updates by the cosines with
the first K singular directions of all these updates (decomposed cosine similarity, EDC). Any other client trains from
the start too before it first takes part, and joins the group whose mean update is most like its own. A new client
does the same. This training has `train.lr` as it is: a schedule might have left nothing of it.
Departures. Updates and the groups' models are averaged with weights n_i. A client that never took part is evaluated
with the model of the group that it would join. Groups are not averaged with each other, which is the paper's default.
k-means has a single start; the authors' code takes the best of ten.
Defaults. 20 clients per group (at most all) train in the warm-up, as in the paper. None was tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmpi.clustering.kmeans_and_linkage import kmeans, replace_entries
from fedmpi.clustering.low_rank import decompose_symmetric
from fedmpi.method import WHOLE, ClientData, Method, Nothing, Participants, RowsByField, nbytes
from fedmpi.models.slices import zero_statistics
from fedmpi.models.tables import table_row
from fedmpi.settings import Ge, ModelCount

# Keeps this use of the seed apart from others
GROUPING_STREAM = 0x6200


class Shared(NamedTuple):
    """The server's state: the groups' models and first mean updates, and the group of each client."""
    # (K, d) a model per group
    models: Annotated[Tensor, WHOLE]
    # (K, d) the mean update of each group in the first training
    directions: Tensor
    # (N,) int64, the group of every client; -1 if it is unknown
    group: Tensor


class Up(NamedTuple):
    """What a participant sends: its model after local training, and its group."""
    # (d,)
    w: Annotated[Tensor, WHOLE]
    # () int64, the client's group
    group: Tensor


@dataclass(frozen=True)
class FedGroup(Method):
    K: Annotated[ModelCount, "number of groups"] = 4
    first: Annotated[int, Ge(1), "clients per group that train before the first round"] = 20

    title = "FedGroup"
    paper = "Duan et al., ISPA 2021"
    judged_by = "the model of its group (after local training: w_i)"
    serves_newcomers = "the model of the group whose mean update is most like its own"
    supports_local_batchnorm = False

    def describe_uncounted_steps(self, clients: int) -> str:
        if self.first * self.K >= clients:
            return ""
        return "the training by which a client that did not train before round 1 finds its group"

    def init(self, n: int) -> tuple[Shared, Nothing]:
        models = self.model.start.repeat(self.K, 1)
        return Shared(models, torch.zeros_like(models), torch.zeros(n, dtype=torch.int64)), Nothing()

    def warm_up_participants(self, n: int, seed: int) -> np.ndarray:
        generator = np.random.default_rng((seed, GROUPING_STREAM))
        return np.sort(generator.choice(n, min(n, self.first * self.K), replace=False))

    def find_group(self, shared: Shared, data: ClientData) -> Tensor:
        """Return the client's group. If it is unknown, train from the start to find it."""
        group = table_row(shared.group, data.id)
        return self.join_group(shared, data, group) if data.any_client(group < 0) else group

    def join_group(self, shared: Shared, data: ClientData, group: Tensor) -> Tensor:
        """Return the group whose mean update is most like the client's own, if its `group` (0-d) is -1."""
        trial = data.with_batches(None, 0, kind="warm_up")
        dW = trial.descend(self.model, self.model.start, lr=data.full_lr, where=group < 0) - self.model.start
        norms = shared.directions.norm(dim=1)
        likeness = data.one_by_one(shared.directions.mv, dW) / norms.clamp(min=1e-30)
        return torch.where(group < 0, torch.where(norms > 0, likeness, -torch.inf).argmax(), group)

    def serve_newcomer(self, shared: Shared, mine: Nothing, data: ClientData) -> Tensor:
        return table_row(shared.models, self.join_group(shared, data, torch.full_like(data.id, -1)))

    def client(self, shared: Shared, mine: Nothing, data: ClientData) -> tuple[Nothing, Up]:
        group = self.find_group(shared, data)
        return mine, Up(data.descend(self.model, table_row(shared.models, group)), group.clone())

    def cluster_updates(self, gram: Tensor, seed: int) -> np.ndarray:
        """Cluster clients by the cosines of their updates with the first K singular directions of all of them."""
        # Eigenvalues ascend
        values, vectors = map(torch.from_numpy, decompose_symmetric(gram.numpy()))
        along = vectors[:, -self.K:] * values[-self.K:].clamp(min=0).sqrt()
        cosines = along / gram.diagonal().sqrt().clamp(min=1e-300)[:, None]
        return kmeans(cosines, self.K, None, (seed, GROUPING_STREAM)).labels

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        if who.round < 0:
            found = self.cluster_updates(up.w.gram(shared.models[0], blocks=self.model.trainable), who.seed)
            who.log(clusters=found, k=self.K)
            models = up.w.mean_by(found, self.K, shared.models, who.sizes)
            return Shared(models, zero_statistics(models - shared.models, self.model.buffers),
                          replace_entries(torch.full_like(shared.group, -1), who.ids, found))
        joined = up.group.gather().flatten().numpy()
        who.log(clusters=joined, k=self.K)
        return Shared(up.w.mean_by(joined, self.K, shared.models, who.sizes), shared.directions,
                      replace_entries(shared.group, who.ids, joined))

    def traffic(self, shared: Shared, up: Up) -> tuple[int, int]:
        # The group's model goes down, and w_i up
        return nbytes((self.model.start,)), nbytes((up.w,))

    def personal(self, shared: Shared, mine: Nothing, data: ClientData) -> Tensor:
        return table_row(shared.models, self.find_group(shared, data))

    def trained(self, shared: Shared, mine: Nothing, up: Up) -> Tensor:
        return up.w
