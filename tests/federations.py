"""Small federations of real digits, and a laboratory that runs a method on them round by round, without files."""
from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedmpi import registry
from fedmpi.clients.hosted import HostedClients
from fedmpi.clients.newcomers import list_newcomers
from fedmpi.clients.state_store import compute_digest
from fedmpi.comm.orders import UP, Order
from fedmpi.comm.rank_pool import RankPool
from fedmpi.comm.robust import RobustMean
from fedmpi.comm.rows import make_rows
from fedmpi.comm.transport import Solo
from fedmpi.config.schema import Server, Train, resolve
from fedmpi.data.federation import Samples
from fedmpi.engines.loop import Loop, rehearse_loop
from fedmpi.method import Participants
from fedmpi.models.build import build_model, make_blank_samples
from fedmpi.models.nets import MLP
from fedmpi.server.rounds import send_messages
from fedmpi.server.sampling import choose_addressed, draw_participants
from fedmpi.settings import make_settings as settled

# Training samples of each client: they give short, whole and single batches.
SIZES = (20, 1, 57, 3, 10, 33, 11, 8)
CPU = torch.device("cpu")
TRAIN = Train(batch=10, lr=.05, lr_decay=.9)


@cache
def pool():
    """Return all digits."""
    return registry.find_class("datasets", "digits")().load(Path())


class Digits:
    """Real digits in memory, distributed with label skew: client i has mostly digits near i."""
    classes = 10

    def __init__(self, sizes=SIZES, test: int = 12, image: bool = False):
        self.sizes, self.groups, self.fingerprint = np.array(sizes), None, "in memory"
        x, y, *_ = pool()
        # Image data sets are stored as bytes of shape (h, w, c).
        if image:
            x = (x * 255).astype(np.uint8).reshape(-1, 8, 8, 1)
        self.shape, self.dtype = x.shape[1:], x.dtype
        rng, free, self.parts = np.random.default_rng(0), np.ones(len(y), bool), []
        for i, n in enumerate(sizes):
            likely = np.where((y - i) % 10 < 3, 20., 1.) * free
            mine = rng.choice(len(y), n + test, replace=False, p=likely / likely.sum())
            free[mine] = False
            self.parts.append(Samples(x[mine[:n]], y[mine[:n]], x[:0], y[:0], x[mine[n:]], y[mine[n:]]))

    def client(self, i: int) -> Samples:
        return self.parts[i]


class View:
    """A changed federation: everything that a subclass does not define is that of the original."""

    def __init__(self, federation):
        self.original = federation

    def __getattr__(self, name):
        return getattr(self.original, name)


class OtherTests(View):
    """The same federation with permuted test labels."""

    def client(self, i: int) -> Samples:
        s = self.original.client(i)
        return s._replace(y_test=np.random.default_rng(i).permutation(9 - s.y_test))


class Odd(View):
    """A federation with clients that real splits have: client 2 has no test samples, client 5 has a single class, and
    client 1 of SIZES has a single sample."""

    def client(self, i: int) -> Samples:
        s = self.original.client(i)
        if i == 2:
            return s._replace(x_test=s.x_test[:0], y_test=s.y_test[:0])
        return s._replace(y_train=s.y_train * 0 + 7) if i == 5 else s


class Renumbered(View):
    """The same clients under other numbers: client i is the original's order[i]."""

    def __init__(self, federation, order):
        super().__init__(federation)
        self.order, self.sizes = order, federation.sizes[order]

    def client(self, i: int) -> Samples:
        return self.original.client(self.order[i])


@dataclass(frozen=True)
class TinyCNN:
    """A convolutional network for 8 x 8 images."""

    def build(self, shape, classes):
        return nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                             nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, classes))


def mlp():
    """Return a small network for the digits."""
    return build_model(MLP(hidden=16), (64,), np.dtype("float32"), 10, seed=5)


def cnn():
    """Return a small convolutional network for the digits as images."""
    return build_model(TinyCNN(), (8, 8, 1), np.dtype("uint8"), 10, seed=5)


def method(name: str, model, **settings):
    """Make a method by name; its settings are checked like those of a configuration."""
    return settled(registry.find_class("methods", name), settings, "method").with_model(model)


class Lab:
    """All ranks of a run, in this process or over `world`, driven by the calls of rank 0."""
    # The default; the fixtures of tests/methods set it.
    training = TRAIN

    def __init__(self, method, federation, engine=None, train=None, share=1., seed=3, world=None, homes=None,
                 reduce="exact", device=CPU, gpu_direct=False, **sections):
        train = train or self.training
        self.method, self.federation, self.reduce = method, federation, reduce
        self.config = replace(resolve({"seed": seed}), train=replace(train, participation=share),
                              **{"server": Server(reduce=reduce), **sections})
        world = world or Solo()
        homes = np.zeros(len(federation.sizes), np.int64) if homes is None else np.asarray(homes)
        self.shared, first = method.init(len(homes))
        self.up = rehearse_loop(method, self.shared, first, make_blank_samples(federation.shape, federation.dtype))[1]
        at_work = method.with_model(method.model.to(device)) if device != CPU else method
        self.group = HostedClients(at_work, self.shared, first, engine or Loop(), federation,
                           np.flatnonzero(homes == world.rank), self.config, device,
                           newcomers=list_newcomers(homes, self.config.data.new_clients, world.rank))
        server = self.config.server
        robust = RobustMean.from_settings(server.aggregation, server.trim)
        self.pool = RankPool(world, self.group, homes, gpu_direct, robust)

    def who(self, t: int):
        return draw_participants(self.config, t, self.federation.sizes)

    def train(self, t: int, who=None, judge=False):
        """Let the participants train; return those whose updates have arrived."""
        who = who or self.who(t)
        told = choose_addressed(self.config, self.federation.sizes, who, judge)
        send_messages(self.pool, self.method, self.shared, told)
        return who.only(self.pool.train(t, who.ids, judge, self.shared))

    def apply(self, function, clients, t: int = 0, engine=None) -> dict:
        """Apply a function of a method to hosted clients, without storing anything."""
        engine = engine or self.group.engine
        if self.method.message_template() is not None:
            ids = np.sort(np.array(clients))
            who = Participants(ids, self.federation.sizes[ids], t, self.config.seed)
            send_messages(self.pool, self.method, self.shared, who)
        return dict(engine.apply(function, clients, self.shared, self.group, self.group.local(t)))

    def round(self, t: int, who=None, judge=False):
        who = self.train(t, who, judge)
        self.shared = self.method.server(self.shared, self.rows(), who)
        if judge:
            self.judged = self.judge(t + 1)
        return who

    def open(self):
        """Run the round before the first one, if the method has one."""
        ids = self.method.warm_up_participants(len(self.federation.sizes), self.config.seed)
        if ids is not None:
            self.round(-1, Participants(ids, self.federation.sizes[ids], -1, self.config.seed))
        return self

    def go(self, rounds: int = 3, judge=False):
        self.open()
        for t in range(rounds):
            self.round(t, judge=judge)
        return self

    def judge(self, t: int) -> np.ndarray:
        return self.pool.judge(t, self.shared)[0]

    def rows(self):
        return make_rows(self.pool, UP, self.up)

    def mine(self, client: int):
        return self.group.store.read(client)

    def digest(self) -> str:
        """Return the digest that the result of a run would have."""
        total = hashlib.sha256(compute_digest(self.shared))
        total.update(np.ascontiguousarray(self.pool.call(Order.DIGEST)).data)
        return total.hexdigest()

    def state(self) -> dict[str, torch.Tensor]:
        """Return everything that the run has learned, by name."""
        out = {f"shared.{name}": value for name, value in self.shared._asdict().items()}
        for c in self.group.clients:
            out |= {f"client {c}.{name}": value for name, value in self.mine(c)._asdict().items()}
        return out


def apart(a: dict, b: dict) -> float:
    """Return the largest difference between two states; inf if their names or shapes differ."""
    if a.keys() != b.keys() or any(a[k].shape != b[k].shape for k in a):
        return float("inf")
    return max((float((a[k].double() - b[k].double()).abs().max()) for k in a if a[k].numel()), default=0.)
