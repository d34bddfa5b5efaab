"""Clustered additive modelling (CAM), Ma et al., NeurIPS 2023: a global model beside those of any clustered method.

A client's logits are h(x; g) + f(x; Theta), where g is the global model and Theta the one that the clustered method
gives the client. A client trains the clustered method as it is, on data to whose logits those of g are added; eqs. 2, 5
and 13 follow, because assignment by loss, training and pulls all see the sum. It also trains g, beside the model that
its round began from (eqs. 8 and 15). Both trainings use the other model as it was at the round's start ("parallel").
Server: g <- the n_i-weighted mean of the theta0 (eq. 9); all else is the clustered method's. Rounds in which nobody
takes part are none of the warm-up.

    class IFCACAM(CAM, IFCA): ...

A clustered method may say by `find_start_model(shared, mine, up, data)` which model a client's round began from.
Without it, that is the model with which the client is evaluated, and it is worked out again. New clients are served by
g and by the model that the clustered method serves them with; its `serve_newcomer` must not call `self.personal`, which
is that of both."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from fedmpi.extended_state import extend_state, strip_state
from fedmpi.method import WHOLE, ClientData, Method, Participants, RowsByField, State, Weights, nbytes
from fedmpi.settings import AtMost, Ge

# Names the draw of the warm-up's batches
WARMUP_STREAM = 0xCA3
# Local steps of a round, as in the paper
DEFAULT_WARM_STEPS = 10
# All batches of the warm-up are drawn before its first step, if every client warms up alone.
WARM_UP_LIMIT = AtMost(10_000, "all batches of a local warm-up are drawn at once")
WARM_STEPS_LIMIT = AtMost(100_000, WARM_UP_LIMIT.why)
WhatWarmsUp = Annotated[Literal["global", "local"], "what warms up: g, or every client's own model in a round before "
                        "the first one"]


@dataclass(frozen=True)
class CAM(Method):
    warm_up: Annotated[int, Ge(0), WARM_UP_LIMIT, "rounds of warm-up, in which either FedAvg trains g alone or every "
                       "client trains alone"] = 30
    warm_steps: Annotated[int | None, Ge(1), WARM_STEPS_LIMIT,
                          "steps for each of these rounds if every client warms up "
                          "alone; null: train.steps, or 10"] = None
    warm: WhatWarmsUp = "global"

    # A client would keep the statistics of g alone
    supports_local_batchnorm = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warm == "global" and self.warm_steps is not None:
            raise ValueError(f"warm_steps = {self.warm_steps}: with warm global these rounds have the steps of all "
                             "others; set warm to local, or leave warm_steps out")
        if not self.warm_up and self.warm_steps is not None:
            raise ValueError(f"warm_steps = {self.warm_steps}: with warm_up = 0 there is no warm-up; raise warm_up, or "
                             "leave warm_steps out")

    def warm_up_participants(self, n: int, seed: int) -> np.ndarray | None:
        return np.arange(n) if self.warm_up and self.warm == "local" else super().warm_up_participants(n, seed)

    def init(self, n: int) -> tuple[State, State]:
        shared, mine = super().init(n)
        # g starts independently of the clusters
        g = self.model.starts(getattr(self, "k", 1) + 1)[-1].clone()
        first = 0 if self.warm_up_participants(n, 0) is None else -1
        return extend_state(shared, ADDED, g=g, round=torch.tensor(first, device=g.device)), mine

    def is_warming_up(self, shared: State) -> bool:
        """Say whether g is trained alone in this round, which is the same for all clients."""
        return self.warm == "global" and 0 <= int(shared.round) < self.warm_up

    def stages(self, shared: State, rounds: int) -> list[tuple[int, State]]:
        """Return the rounds in which g is trained alone, and the stages of the clustered method."""
        alone = min(rounds, self.warm_up) if self.warm == "global" else 0
        after = shared._replace(round=torch.tensor(self.warm_up))
        return [(alone, shared._replace(round=torch.tensor(0))), *super().stages(after, rounds - alone)]

    def stage_of(self, shared: State) -> int:
        return 0 if self.is_warming_up(shared) else 1 + super().stage_of(shared)

    def list_oddities(self, rounds: int) -> list[str]:
        odd = super().list_oddities(rounds)
        if self.warm == "local" or self.warm_up < rounds:
            return odd
        return [*odd, f"method.warm_up = {self.warm_up}: in all rounds = {rounds} FedAvg trains g alone, so that no "
                "client joins a cluster; take a shorter warm-up or more rounds"]

    def client(self, shared: State, mine: State, data: ClientData) -> tuple[State, State]:
        if self.is_warming_up(shared):
            # The clustered method makes no steps, but what it sends is part of Up
            rests = data.subset(0., WARMUP_STREAM).with_batches(0, WARMUP_STREAM, steps=0)
            _, up = super().client(shared, mine, rests)
            warming = data.with_batches(None, 0, kind="warm_up")
            return copy_state(mine), extend_state(up, ADDED, theta0=warming.descend(self.model, shared.g))
        if shared.round < 0:
            # a round that the clustered method has before its first one (LCFed, FedGroup) stays what it is
            if self.warm == "local" and self.warm_up:
                each = self.warm_steps or data.fixed_steps or DEFAULT_WARM_STEPS
                data = data.with_batches(1, WARMUP_STREAM, self.warm_up * each)
            mine, up = super().client(shared, mine, data)
            return mine, extend_state(up, ADDED, theta0=shared.g.clone())
        trained, up = super().client(shared, mine, data.with_added_logits(self.model, shared.g))
        start = self.find_clustered_start(shared, mine, up, data)
        return trained, extend_state(up, ADDED, theta0=self.train_global(start, shared.g, data))

    def idle(self, shared: State, mine: State, data: ClientData) -> State:
        # As in `client`: no steps beside g, a round before the first one as it is, and else all see the sum
        if self.is_warming_up(shared):
            return copy_state(mine)
        if shared.round < 0:
            return super().idle(shared, mine, data)
        return super().idle(shared, mine, data.with_added_logits(self.model, shared.g))

    def find_clustered_start(self, shared: State, mine: State, up: State, data: ClientData) -> Tensor:
        """Return the model that the client's round began from."""
        known = getattr(super(), "find_start_model", None)
        if known:
            return known(shared, mine, up, data)
        return super().personal(shared, mine, data.with_added_logits(self.model, shared.g))

    def train_global(self, w: Tensor, g: Tensor, data: ClientData) -> Tensor:
        """Return the global model after training, with the logits of w added to its own."""
        return data.with_added_logits(self.model, w).descend(self.model, g)

    def server(self, shared: State, up: RowsByField, who: Participants) -> State:
        new = shared if self.is_warming_up(shared) else super().server(shared, up, who)
        g = shared.g if shared.round < 0 else up.theta0.mean(who.sizes)
        return shared._replace(**new._asdict() | {"g": g, "round": shared.round + 1})

    def traffic(self, shared: State, up: State) -> tuple[int, int]:
        down, sent = super().traffic(strip_state(shared), strip_state(up))
        return down + nbytes((shared.g,)), sent + nbytes((up.theta0,))

    def personal(self, shared: State, mine: State, data: ClientData) -> Weights:
        """Return the weights whose logits are added up: (g,) while g is trained alone, else (g, Theta)."""
        if self.is_warming_up(shared):
            return (shared.g,)
        return shared.g, super().personal(shared, mine, data.with_added_logits(self.model, shared.g))

    def serve_newcomer(self, shared: State, mine: State, data: ClientData) -> Weights:
        if self.is_warming_up(shared):
            return (shared.g,)
        return shared.g, super().serve_newcomer(shared, mine, data.with_added_logits(self.model, shared.g))

    def trained(self, shared: State, mine: State, up: State) -> Weights | None:
        """Return (g, theta), whose logits the client's training added up: g as sent, and theta after training."""
        if self.is_warming_up(shared):
            return (up.theta0,)
        own = super().trained(shared, mine, up)
        return None if own is None else (shared.g, own)

    def predict(self, w: Weights, x: Tensor) -> Tensor:
        return sum(self.model(part, x) for part in w)


# The fields that CAM adds: the global model, the number of rounds in which somebody took part, and the global model
# after local training.
ADDED: dict[str, object] = {"g": Annotated[Tensor, WHOLE], "round": Tensor, "theta0": Annotated[Tensor, WHOLE]}


def copy_state(state: State) -> State:
    """Return a state whose tensors are copies."""
    return type(state)(*(v.clone() for v in state))
