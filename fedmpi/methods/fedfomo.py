"""FedFomo, Zhang et al., ICLR 2021: each client downloads the models that helped it most, and moves towards them.

The name stands for first-order model optimisation: a client moves to a model as far as that lowers its validation loss.
Objective: min over w_i of f_i(w_i). v_i is client i's model before its last local training, and w_i the trained one.
Client i starts its next training at v_i <- v_i + sum_n a_n (w_n - v_i), where n runs over the models that it is sent
and its own w_i. The a_n are the positive parts, normalised to sum 1, of
    (L_i(v_i) - L_i(w_n)) / (||w_n - v_i|| + 1e-5),
where L_i is the loss on a fixed fifth of client i's training samples, on which it does not train (a client with one
sample does). If no a_n is positive, it starts at v_i again.
Server: adds up the raw weights in a table of affinities, and sends client i the M models with the highest affinity in
its row. Each of these M is, with probability `epsilon`, replaced by a random model; epsilon falls by `fall` a round.
Departures. Before adding the weights of a round, the authors' code divides them by the absolute value of their sum;
here they are added as they are. Equal affinities (all are equal at first) are put in a random order, which is drawn for
each round and client. If there are fewer than M others, the client is sent its own model in their place. It counts for
nothing, and neither does any model that is nearer than 1e-5 to v_i or w_i. The server reads the models that clients
keep, so that nothing is held twice.
New clients cannot be served: the server has no model to send them, only those that clients keep.
Defaults. epsilon = .3 and fall = .05 are those of the authors' code. None was tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmpi.method import WHOLE, ClientData, Method, Participants, RowsByField, nbytes
from fedmpi.models.slices import zero_statistics
from fedmpi.settings import Ge, Gt, Le, Lt, ModelCount

# Names the draw of the samples that are held out
HELD_OUT_STREAM = 1
# Keeps this use of the seed apart from others
CHOICE_STREAM = 0xF0_0D
# A model at most so far from another counts as the same
SAME_MODEL_DISTANCE = 1e-5


class Shared(NamedTuple):
    """The server's state: the table of affinities between clients."""
    # (N, N) row i holds what the models of others were worth to client i
    affinity: Tensor


class Mine(NamedTuple):
    """What a client keeps between rounds: its trained model, and the model from which that training started."""
    # (d,)
    w: Annotated[Tensor, WHOLE]
    # (d,) v_i, from which its last local training started
    before: Annotated[Tensor, WHOLE]


class Message(NamedTuple):
    """What the server addresses to one participant: the models that it downloads."""
    # (M, d) the models that the client is sent
    models: Annotated[Tensor, WHOLE]


class Up(NamedTuple):
    """What a participant sends: how much the models that it was sent, and its own, are worth to it."""
    # (M + 1,) raw weights of the models that were sent and of its own
    weight: Tensor


@dataclass(frozen=True)
class FedFomo(Method):
    M: Annotated[ModelCount, "number of models that a client is sent"] = 5
    epsilon: Annotated[float, Ge(0), Le(1), "share of models that are sent at random in the first round"] = .3
    fall: Annotated[float, Ge(0), Le(1), "amount by which epsilon falls after every round, until it is 0"] = .05
    held_out: Annotated[float, Gt(0), Lt(1), "share of the training samples on which models are validated"] = .2

    title = "FedFomo"
    paper = "Zhang et al., ICLR 2021"
    judged_by = "w_i, the personal model"
    # The server mixes what clients keep
    supports_robust_mean = False

    def init(self, n: int) -> tuple[Shared, Mine]:
        return Shared(torch.eye(n)), Mine(self.model.start, self.model.start)

    def message_template(self) -> Message:
        return Message(self.model.start.repeat(self.M, 1))

    def choose_models(self, shared: Shared, who: Participants) -> np.ndarray:
        """Return the clients whose models each participant is sent, (participants, M)."""
        rows = shared.affinity.numpy()[who.ids]
        return np.stack([self.choose_for(row, int(i), who) for i, row in zip(who.ids, rows, strict=True)])

    def choose_for(self, row: np.ndarray, i: int, who: Participants) -> np.ndarray:
        """Return the clients whose models client i is sent, (M,); `row` (N,) is its row of affinities."""
        generator = np.random.default_rng((who.seed, who.round, i, CHOICE_STREAM))
        at_random = generator.random(self.M) < self.epsilon - who.round * self.fall
        order = generator.permutation(len(row))
        shuffled = [int(j) for j in order if j != i]
        best = sorted(shuffled, key=lambda j: -row[j])
        found = []
        for explore in at_random[:len(shuffled)]:
            found.append(next(j for j in (shuffled if explore else best) if j not in found))
        return np.array(found + [i] * (self.M - len(found)))

    def messages(self, shared: Shared, mine: RowsByField, who: Participants) -> Message:
        return Message(mine.w.mix(np.eye(len(shared.affinity))[self.choose_models(shared, who)]))

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        train = data.subset(1 - self.held_out, HELD_OUT_STREAM, fixed=True)
        held = data.subset(1 - self.held_out, HELD_OUT_STREAM, fixed=True, rest=True)
        models = torch.cat([data.message.models, mine.w[None]])
        v = mine.before
        gains = held.mean_loss(self.model, v) - torch.stack([held.mean_loss(self.model, w) for w in models])
        distances = self.measure_distances(models, v)
        other = self.measure_distances(data.message.models, mine.w) > SAME_MODEL_DISTANCE
        counts = (distances > SAME_MODEL_DISTANCE) & torch.cat([other, torch.ones_like(other[:1])])
        weight = torch.where(counts, gains / (distances + 1e-5), 0.)
        a = weight.clamp(min=0)
        v = v + a / torch.where(a.sum() > 0, a.sum(), 1.) @ (models - v)
        return Mine(train.descend(self.model, v), v), Up(weight)

    def measure_distances(self, models: Tensor, v: Tensor) -> Tensor:
        """Return the distances of models (n, d) from v (d,) over their parameters, (n,): running statistics, which stay
        at each client, are not part of them."""
        return zero_statistics(models - v, self.model.buffers).norm(dim=1)

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        affinity = shared.affinity.clone()
        rows = torch.as_tensor(who.ids)[:, None]
        weight = up.weight.gather()
        columns = torch.cat([torch.as_tensor(self.choose_models(shared, who)), rows], 1)
        affinity.index_put_((rows, columns), weight, accumulate=True)
        return Shared(affinity)

    def traffic(self, shared: Shared, up: Up) -> tuple[int, int]:
        # A client receives M models, and sends w_i, which is as long as each of them, and its weights
        received = nbytes(self.message_template())
        return received, received // self.M + nbytes(up)

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return mine.w
