"""A laboratory that runs a method round by round, without files, with all that it keeps at hand."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedmpi.clients.checked_method import CheckedMethod
from fedmpi.clients.hosted import HostedClients
from fedmpi.clients.newcomers import list_newcomers
from fedmpi.clients.state_store import compute_run_digest
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.comm.orders import UP
from fedmpi.comm.rank_pool import RankPool
from fedmpi.comm.robust import RobustMean
from fedmpi.comm.rows import FieldHandles, make_rows
from fedmpi.comm.transport import Solo, Transport
from fedmpi.config.schema import Config, Server, Train, resolve
from fedmpi.data.federation import Federation
from fedmpi.engines.engine import Engine
from fedmpi.engines.engine_choice import CPU
from fedmpi.engines.loop import Loop
from fedmpi.engines.rehearsal import rehearse_loop
from fedmpi.method import Method, Participants, State
from fedmpi.models.build import make_blank_samples
from fedmpi.server.rounds import send_messages
from fedmpi.server.sampling import choose_addressed, draw_participants, make_participants
from fedmpi.server_only import hide_server_only

# mypy cannot check sections that are known by name alone.
change_sections: Callable[..., Config] = replace
LAB_TRAINING = Train(batch=10, lr=.05, lr_decay=.9)


class Lab:
    """All ranks of a run, in this process or over `world`, driven by the calls of rank 0."""
    # The default
    training = LAB_TRAINING

    def __init__(self, method: Method, federation: Federation, engine: Engine | None = None, train: Train | None = None,
                 share: float = 1., seed: int = 3, world: Transport | None = None,
                 homes: Sequence[int] | np.ndarray | None = None, reduce: Literal["exact", "float32"] = "exact",
                 device: torch.device = CPU, gpu_direct: bool = False, **sections: object):
        train = train or self.training
        self.method, self.federation, self.reduce = method, federation, reduce
        self.config = change_sections(resolve({"seed": seed}), train=replace(train, participation=share),
                                      **{"server": Server(reduce=reduce), **sections})
        world = world or Solo()
        homes = np.zeros(len(federation.sizes), np.int64) if homes is None else np.asarray(homes)
        self.shared, first = method.init(len(homes))
        self.up = rehearse_loop(method, self.shared, first, make_blank_samples(federation.shape, federation.dtype))[1]
        at_work = method.with_model(method.model.to(device)) if device != CPU else method
        hosted = np.flatnonzero(homes == world.rank).tolist()
        self.group = HostedClients(at_work, self.shared, first, engine or Loop(), federation, hosted, self.config,
                                   device, up=self.up,
                                   newcomers=list_newcomers(homes, self.config.data.new_clients, world.rank))
        self.checked = CheckedMethod(method, first, self.up, federation.classes)
        server = self.config.server
        robust = RobustMean.from_settings(server.aggregation, server.trim)
        self.pool = RankPool(world, self.group, homes, gpu_direct, robust)
        self.evaluated = np.empty(0)

    def who(self, t: int) -> Participants:
        """Return the participants of round t."""
        return draw_participants(self.config, t, self.federation.sizes)

    def choose(self, ids: np.ndarray, t: int) -> Participants:
        """Return these clients as the participants of round t."""
        return make_participants(self.config, t, self.federation.sizes, ids)

    def train(self, t: int, who: Participants | None = None, evaluates: bool = False) -> Participants:
        """Let the participants train; return those whose updates have arrived."""
        who = who or self.who(t)
        told = choose_addressed(self.config, self.checked, self.federation.sizes, who, evaluates)
        send_messages(self.pool, self.checked, self.shared, told)
        return who.only(self.pool.train(t, who.ids, evaluates, self.shared))

    def apply(self, function: Callable[..., State], clients: Sequence[int], t: int = 0,
              engine: Engine | None = None) -> dict[int, State]:
        """Apply a function of a method to hosted clients, without storing anything."""
        engine = engine or self.group.engine
        if self.checked.message_template is not None:
            send_messages(self.pool, self.checked, self.shared, self.choose(np.sort(np.array(clients)), t))
        shared = hide_server_only(self.shared)
        return dict(engine.apply(function, [*clients], shared, self.group, self.group.plan_training(t)))

    def round(self, t: int, who: Participants | None = None, evaluates: bool = False) -> Participants:
        """Perform a round; return whose updates have arrived."""
        who = self.train(t, who, evaluates)
        self.shared = self.checked.server(self.shared, self.rows(), who)
        if evaluates:
            self.evaluated = self.evaluate(t + 1)
        return who

    def open(self) -> Lab:
        """Run the round before the first one, if the method has one."""
        ids = self.method.warm_up_participants(len(self.federation.sizes), self.config.seed)
        if ids is not None:
            self.round(-1, self.choose(ids, -1))
        return self

    def go(self, rounds: int = 3, evaluates: bool = False) -> Lab:
        """Run some rounds from the first one on."""
        self.open()
        for t in range(rounds):
            self.round(t, evaluates=evaluates)
        return self

    def evaluate(self, t: int) -> np.ndarray:
        """Return the measures of all clients before round t."""
        return self.pool.evaluate(t, self.shared)[0]

    def rows(self) -> FieldHandles:
        """Return handles on what the participants of the last round sent."""
        return make_rows(self.pool, UP, self.up)

    def mine(self, client: int) -> State:
        """Return what a client keeps."""
        return self.group.store.read(client)

    def digest(self) -> str:
        """Return the digest that the result of a run would have."""
        return compute_run_digest(self.shared, self.pool.call(OrderPerformer.gather_digests))

    def state(self) -> dict[str, Tensor]:
        """Return everything that the run has learned, by name."""
        out = {f"shared.{name}": value for name, value in self.shared._asdict().items()}
        for c in self.group.clients:
            out |= {f"client {c}.{name}": value for name, value in self.mine(c)._asdict().items()}
        return out
