"""FedAH, Zhou et al., 2024: a client blends the global head into its own, element by element, before it trains.

The name stands for aggregated head.
Objective: min over the personal models of sum_i (n_i / n) f_i(phi, hhat_i), where hhat_i = h_i + (h - h_i) * W_i, and
W_i in [0, 1] is learned by gradient steps on client i's data (eqs. 1-6, algorithm 1).
Client: learns W_i for `mix_epochs` epochs, trains the head from hhat_i for `head_epochs` with phi frozen, and phi for
E epochs with that head frozen. Server: the n_i-weighted mean of the (phi_i, h_i).
New clients. The paper says nothing of them. Ours do what a client does before its first training: they blend the global
head into the first one, and W starts at `mix_start`.
Departures. The step of W is `mix_lr` = 1, as in the code that made the paper's tables; the text says eta. By default
only participants mix (algorithm 1). With `mix_everyone` every client mixes in every round and keeps the result, as in
that code; at participation 1 both are the same. While phi is frozen, its features are computed only once.
Defaults. They are the paper's and its code's; none was tuned here."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedmpi.method import HEAD, WHOLE, ClientData, Method, Participants, RowsByField, State
from fedmpi.settings import Ge, Le, PassCount

# Name the draws of the batches of the mix and head passes
MIX_STREAM, HEAD_STREAM = 1, 2


class Shared(NamedTuple):
    """The server's state: the global model."""
    # (d,) the global model (phi, h)
    w: Annotated[Tensor, WHOLE]


class Mine(NamedTuple):
    """What a client keeps between rounds: its head, and the weights with which it blends the global head into it."""
    # (h,) the client's head
    h: Annotated[Tensor, HEAD]
    # (h,) how much of the global head it takes, element by element
    W: Tensor


class Up(NamedTuple):
    """What a participant sends: its extractor and its head after local training."""
    # (d,) (phi_i, h_i)
    w: Annotated[Tensor, WHOLE]


# Its functions take any State for `shared`, because FedMHC-AH inherits them and has another Shared.
@dataclass(frozen=True)
class FedAH(Method):
    mix_epochs: Annotated[PassCount, Ge(0), "epochs that learn W at the start of a round; 0 keeps W as it is"] = 1
    mix_lr: Annotated[float, Ge(0), "learning rate of W"] = 1.0
    mix_start: Annotated[float, Ge(0), Le(1), "first value of W: 1 takes the global head, 0 keeps the client's "
                         "own"] = 1.0
    mix_everyone: Annotated[bool, "clients that do not take part in a round mix too, and keep the result"] = False
    head_epochs: Annotated[PassCount, Ge(1), "epochs that train the head while phi is frozen"] = 1

    title = "FedAH"
    paper = "Zhou et al., 2024"
    judged_by = "(phi, hhat_i), mixed anew on the global model (after local training: (phi_i, h_i))"
    serves_newcomers = "the global model, its head blended with the first one (eqs. 3 and 4)"

    def init(self, n: int) -> tuple[State, Mine]:
        h = self.model.start[self.model.h]
        return Shared(self.model.start), Mine(h, torch.full_like(h, self.mix_start))

    def receive(self, shared: State, data: ClientData) -> tuple[Tensor, Tensor, ClientData]:
        """Return the extractor and the head that the server sends this client, and the features of its samples."""
        phi, h = shared.w[self.model.phi], shared.w[self.model.h]
        return phi, h, data.with_features(self.model.base, phi)

    def mix(self, h: Tensor, mine: Mine, features: ClientData) -> tuple[Tensor, Tensor]:
        """Learn W on frozen features; return the aggregated head (eq. 3) and W (eq. 4)."""
        W = features.once(self.learn_weights, h, *mine) if self.mix_epochs else mine.W
        return blend(mine.h, h, W), W

    def learn_weights(self, h: Tensor, own: Tensor, W: Tensor, features: ClientData) -> Tensor:
        """Return W after the mix passes (eq. 4)."""
        return features.with_batches(self.mix_epochs, MIX_STREAM, kind="mix").descend(
            self.compute_mixed_loss, W, lr=self.mix_lr, momentum=0., args=(own, h), clip=(0., 1.))

    def compute_mixed_loss(self, W: Tensor, z: Tensor, y: Tensor, own: Tensor, h: Tensor) -> Tensor:
        """Return the cross-entropy (b,) of the blended head on features z."""
        return self.model.head.loss(blend(own, h, W), z, y)

    def client(self, shared: State, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        phi, h, features = self.receive(shared, data)
        hhat, W = self.mix(h, mine, features)
        own = features.with_batches(self.head_epochs, HEAD_STREAM, kind="head").descend(self.model.head, hhat)
        w = data.descend(self.model, self.model.join(phi, own), only=self.model.phi)
        return Mine(own, W), Up(w)

    @property
    def idles(self) -> bool:
        return self.mix_everyone

    def idle(self, shared: State, mine: Mine, data: ClientData) -> Mine:
        _, h, features = self.receive(shared, data)
        return Mine(*self.mix(h, mine, features))

    def server(self, shared: State, up: RowsByField, who: Participants) -> State:
        return Shared(up.w.mean(who.sizes))

    def personal(self, shared: State, mine: Mine, data: ClientData) -> Tensor:
        phi, h, features = self.receive(shared, data)
        hhat, _ = self.mix(h, mine, features)
        return self.model.join(phi, hhat)

    def trained(self, shared: State, mine: Mine, up: Up) -> Tensor:
        return up.w


def blend(own: Tensor, h: Tensor, W: Tensor) -> Tensor:
    """Return h_i + (h - h_i) * W (eq. 3)."""
    return own + (h - own) * W
