"""pFedCAM, Yang et al., World Wide Web 2023: personal models interpolated from the models of all clusters.

RECONSTRUCTED from its abstract and from the FedMHC paper: these say what is sent and what is clustered, but not the
formulas.
Objective: min over the clusters' models Theta_k, by k-means on the clients' models and FedAvg inside each cluster. A
client's start and personal model is sum_k a_ik Theta_k, where a_i is the softmax of logits that are learned on its
training data. Local steps then refine it.
Our own choices. `interp_epochs` passes of SGD at the start of a round learn the logits, and the client keeps them.
Before local training a client is evaluated with the interpolation learned anew, without keeping it, and after local
training with the refined model. k-means starts from the Theta_k as they are (by k-means++ the first time, when all are
equal). An empty cluster keeps its model while some clients do not take part; if all do, scikit-learn moves it to a far
client's. Whole models are clustered as points with the same distances, which follow from their inner products.
Defaults. K = 4 is FedMHC's M. None was tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from fedmpi.clustering.kmeans_and_linkage import cluster_models
from fedmpi.method import WHOLE, ClientData, Method, Participants, RowsByField, nbytes
from fedmpi.models.slices import zero_statistics
from fedmpi.models.tables import mix_rows
from fedmpi.settings import Ge, ModelCount, PassCount

# Names the draw of the batches that the logits are learned on
LOGITS_STREAM = 1


class Shared(NamedTuple):
    """The server's state: the clusters' models."""
    # (K, d) a model per cluster
    Theta: Annotated[Tensor, WHOLE]


class Mine(NamedTuple):
    """What a client keeps between rounds: the logits of its weights for the clusters' models."""
    # (K,) logits of the client's weights a_i
    s: Tensor


class Up(NamedTuple):
    """What a participant sends: its model after local training, and its squared distances to the clusters' models."""
    # (d,) the model after local training
    w: Annotated[Tensor, WHOLE]
    # (K,) squared distances to the Theta_k; the ledger leaves them out, because the server could compute them
    squares: Tensor


@dataclass(frozen=True)
class PFedCAM(Method):
    K: Annotated[ModelCount, "number of clusters"] = 4
    interp_lr: Annotated[float, Ge(0), "learning rate of the logits"] = 1.
    interp_epochs: Annotated[PassCount, Ge(1), "epochs that learn the logits at the start of a round"] = 1

    title = "pFedCAM"
    paper = "Yang et al., World Wide Web 2023; reconstructed"
    judged_by = "sum_k a_ik Theta_k, a_i learned anew (after local training: w_i)"
    serves_newcomers = "the interpolation of all clusters, learned on its data, as every client"
    supports_local_batchnorm = False

    def init(self, n: int) -> tuple[Shared, Mine]:
        return Shared(self.model.start.repeat(self.K, 1)), Mine(self.model.start.new_zeros(self.K))

    def interpolate(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Tensor, Tensor]:
        """Return the interpolated model, and the logits learned for it."""
        s = data.once(self.learn_logits, shared.Theta, mine.s)
        return mix_rows(s.softmax(-1), shared.Theta), s

    def learn_logits(self, Theta: Tensor, s: Tensor, data: ClientData) -> Tensor:
        """Return the logits of a client's weights for the models Theta, learned from the logits s."""
        def loss(s: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self.model.loss(mix_rows(s.softmax(-1), Theta), x, y)
        return data.with_batches(self.interp_epochs, LOGITS_STREAM, kind="mix").descend(
            loss, s, lr=self.interp_lr, momentum=0.)

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        w, s = self.interpolate(shared, mine, data)
        w = data.descend(self.model, w)
        return Mine(s), Up(w, (zero_statistics(shared.Theta - w, self.model.buffers) ** 2).sum(1))

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        found = cluster_models(up.w, up.squares, shared.Theta, (who.seed, who.round),
                               keep_empty=who.some_are_absent, blocks=self.model.trainable)
        who.log(clusters=found.labels, k=self.K, iterations=found.iterations, distance=found.distance)
        return Shared(up.w.mean_by(found.labels, self.K, shared.Theta, who.sizes))

    def traffic(self, shared: Shared, up: Up) -> tuple[int, int]:
        # All models go down, and w_i up
        return nbytes(shared), nbytes((up.w,))

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return self.interpolate(shared, mine, data)[0]

    def trained(self, shared: Shared, mine: Mine, up: Up) -> Tensor:
        return up.w
