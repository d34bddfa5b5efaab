"""A tiny hypernetwork, after pFedHN (Shamsian et al., ICML 2021): the server makes a model for each client.

Server: client i has an embedding v_i (e,), and its model is h(v_i) = start + A v_i, with A (d, e).
Client: SGD from h(v_i); it sends the change delta_i, and keeps the model that it has trained.
Server: A = A + eta_h mean of delta_i v_i^T, v_i = v_i + eta_h A^T delta_i, both from the old A and v_i: the steps
that -delta_i is the gradient of. Embeddings and A stay with the server."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmpi.method import SERVER_ONLY, WHOLE, ClientData, Method, Participants, RowsByField
from fedmpi.settings import Ge, Gt

# Names the draw of the first embeddings and of A
START_STREAM = 0x4E7


class Shared(NamedTuple):
    # (N, e) embeddings, (d, e) the hypernetwork
    v: Annotated[Tensor, SERVER_ONLY]
    A: Annotated[Tensor, SERVER_ONLY]


class Mine(NamedTuple):
    # (d,) the client's model
    w: Annotated[Tensor, WHOLE]


class Message(NamedTuple):
    # (d,) what the server makes for the client
    w: Annotated[Tensor, WHOLE]


class Up(NamedTuple):
    # (d,) what local training has changed
    delta: Tensor


@dataclass(frozen=True)
class Hypernetwork(Method):
    e: Annotated[int, Ge(1), "width of an embedding"] = 4
    eta: Annotated[float, Gt(0), "the server's learning rate"] = .1

    title = "Hypernetwork"
    paper = "after pFedHN, Shamsian et al., ICML 2021"
    judged_by = "w_i, the model that client i trained last"
    supports_robust_mean = False
    supports_local_batchnorm = False

    def init(self, n: int) -> tuple[Shared, Mine]:
        # the run's seed, so that runs of several seeds differ, and a stream of its own
        w, rng = self.model.start, np.random.default_rng((self.model.seed, START_STREAM))
        v = torch.from_numpy(rng.standard_normal((n, self.e))) / self.e ** .5
        A = torch.from_numpy(rng.standard_normal((len(w), self.e))) * .01
        return Shared(v.to(w), A.to(w)), Mine(w)

    def message_template(self) -> Message:
        return Message(self.model.start)

    def messages(self, shared: Shared, mine: RowsByField, who: Participants) -> Message:
        # one by one: a row of a product may depend on how many there are, and so would a client
        return Message(torch.stack([self.model.start + shared.A @ shared.v[i] for i in who.ids]))

    def client(self, shared: Shared, mine: Mine, data: ClientData) -> tuple[Mine, Up]:
        w = data.descend(self.model, data.message.w)
        return Mine(w), Up(w - data.message.w)

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        v = shared.v[who.ids]
        A = shared.A + self.eta * up.delta.combine(v.T / len(v)).T
        moved = shared.v.index_add(0, torch.from_numpy(who.ids), self.eta * up.delta.gather() @ shared.A)
        return Shared(moved, A)

    def personal(self, shared: Shared, mine: Mine, data: ClientData) -> Tensor:
        return mine.w
