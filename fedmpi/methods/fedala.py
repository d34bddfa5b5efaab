"""FedALA, Zhang et al., AAAI 2023: a client blends the top of the global model into its own before it trains.

The name stands for adaptive local aggregation.
Objective: min over the personal models of sum_i (n_i / n) f_i(what_i), where what_i = w_i + (w - w_i) * W_i, and W_i in
[0, 1] is learned by gradient steps on a random share of client i's data; below the top p parameter tensors, W_i is 1.
Departures. By default only participants mix. With `mix_everyone` every client mixes in every round and keeps the
result, as in the authors' code; at participation 1 both are the same. The first time, W is learned until the loss
hardly moves; here that is the mean loss over the share after each pass, not the loss of its last batch. The paper sets
no limit to the number of these passes; here it is `first_passes`. "The first time" is the first round in which the
global top differs from the client's own, because equal tops give W nothing to learn. The batches of a pass are
shuffled, and the share is drawn at random; the authors' code takes a window of the data and leaves out a short last
batch. If everything below the head is frozen, features are computed only once.
Defaults. p, share and mix_lr are those of the authors' code. `spread` = .01 (in that code .1) and first_passes = 50 are
ours. None was tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedmpi.errors import BadInput
from fedmpi.method import HEAD, WHOLE, ClientData, Method, Participants, RowsByField
from fedmpi.methods.fedah import blend
from fedmpi.models.flat import Model, Net
from fedmpi.settings import Ge, Gt, Le, PassCount

# Name the draws of the share that W is learned on, and of the first of its passes
PART_STREAM, WEIGHTS_STREAM = 1, 2
# W has converged if so many losses hardly differ
RECENT = 10


class Shared(NamedTuple):
    """The server's state: the global model."""
    # (d,) the global model
    w: Annotated[Tensor, WHOLE]


class Mine(NamedTuple):
    """What a client keeps between rounds: its top tensors, the weights of its blend, and whether these were learned."""
    # (t,) the client's own top tensors
    top: Annotated[Tensor, HEAD]
    # (t,) how much of the global ones it takes, element by element
    W: Tensor
    # () whether W was learned before
    learned: Tensor


class Up(NamedTuple):
    """What a participant sends: its model after local training."""
    # (d,)
    w: Annotated[Tensor, WHOLE]


@dataclass(frozen=True)
class FedALA(Method):
    p: Annotated[int, Ge(1), "number of parameter tensors that are blended, from the top; 2 is the last Linear "
                 "layer"] = 2
    share: Annotated[float, Gt(0), Le(1), "share of the training samples, drawn every round, on which W is "
                     "learned"] = .8
    mix_lr: Annotated[float, Ge(0), "learning rate of W"] = 1.0
    spread: Annotated[float, Ge(0), "the first time, W is learned until the last 10 losses deviate by less than "
                      "this"] = .01
    first_passes: Annotated[PassCount, Ge(1), "largest number of passes the first time"] = 50
    mix_everyone: Annotated[bool, "clients that do not take part in a round mix too, and keep the result"] = False

    title = "FedALA"
    paper = "Zhang et al., AAAI 2023"
    judged_by = "w_i, blended anew with the global model (after local training: w_i)"
    serves_newcomers = "the global model, its top blended with the first one as in a first round"

    def with_model(self, model: Model) -> Method:
        moving = len(model.names) - len(model.buffer_names)
        if self.p > moving:
            raise BadInput(f"method.p = {self.p}: the model has {moving} parameter tensors; set p to at most that")
        return super().with_model(model)

    @property
    def cut(self) -> int:
        """Return the position in w at which the top begins."""
        names = [name for name in self.model.names if name not in self.model.buffer_names]
        return self.model.blocks[names[-self.p]].start

    def init(self, n: int) -> tuple[Shared, Mine]:
        top = self.model.start[self.cut:]
        return Shared(self.model.start), Mine(top, torch.ones_like(top), torch.zeros_like(top[0], dtype=torch.bool))

    def describe_uncounted_steps(self, clients: int) -> str:
        return "the further passes for W the first time, up to `first_passes`"

    def mix(self, w: Tensor, mine: Mine, data: ClientData) -> tuple[Tensor, Tensor]:
        """Return the blended model, and the W that was learned for it."""
        W = data.once(self.learn_weights, w, *mine)
        return torch.cat([w[:self.cut], blend(mine.top, w[self.cut:], W)]), W

    def learn_weights(self, w: Tensor, own: Tensor, W: Tensor, learned: Tensor, data: ClientData) -> Tensor:
        """Return the weights W of the blend of a client's own top with that of w."""
        net, below, part = self.split_top(w, data.subset(self.share, PART_STREAM))
        top = w[self.cut:]
        losses = []

        def loss(W: Tensor, x: Tensor, y: Tensor, own: Tensor) -> Tensor:
            return net.loss(torch.cat([below, blend(own, top, W)]), x, y)
        going = ~learned & (own != top).any()
        for k in range(self.first_passes):
            W = part.with_batches(1, WEIGHTS_STREAM + k, kind="mix").descend(
                loss, W, lr=self.mix_lr, momentum=0., args=(own,), clip=(0., 1.), where=going if k else None)
            if not data.any_client(going):
                break
            losses.append(part.mean_loss(net, torch.cat([below, blend(own, top, W)])))
            if len(losses) >= RECENT:
                going = going & (torch.stack(losses[-RECENT:]).std(correction=0) >= self.spread)
        return W

    def split_top(self, w: Tensor, data: ClientData) -> tuple[Net, Tensor, ClientData]:
        """Return the network that holds the top, its frozen part, and its samples (features, if it is the head)."""
        head = self.model.h.start
        if self.cut < head:
            return self.model, w[:self.cut], data
        return self.model.head, w[head:self.cut], data.with_features(self.model.base, w[self.model.phi])

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        what, W = self.mix(shared.w, mine, data)
        w = data.descend(self.model, what)
        return self.make_state(shared, mine, w, W), Up(w)

    @property
    def idles(self) -> bool:
        return self.mix_everyone

    def idle(self, shared: Shared, mine: Mine, data: ClientData) -> Mine:
        return self.make_state(shared, mine, *self.mix(shared.w, mine, data))

    def make_state(self, shared: Shared, mine: Mine, w: Tensor, W: Tensor) -> Mine:
        """Return what the client keeps of a trained model w and its W."""
        learned = mine.learned | (mine.top != shared.w[self.cut:]).any()
        return Mine(w[self.cut:].clone(), W, learned)

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        return Shared(up.w.mean(who.sizes))

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return self.mix(shared.w, mine, data)[0]

    def trained(self, shared: Shared, mine: Mine, up: Up) -> Tensor:
        return up.w
