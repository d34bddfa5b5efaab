"""Small federations of real digits, and a laboratory that drives a method on them round by round, without files."""
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
from fedmpi.clients.state_store import digest_of
from fedmpi.comm.orders import UP, Order
from fedmpi.comm.rank_pool import RankPool
from fedmpi.comm.robust import RobustMean
from fedmpi.comm.rows import rows_of
from fedmpi.comm.transport import Solo
from fedmpi.config.schema import Server, Train, resolve
from fedmpi.data.federation import Samples
from fedmpi.engines.loop import Loop, rehearse_loop
from fedmpi.method import Participants
from fedmpi.models.build import blank_samples, build_model
from fedmpi.models.nets import MLP
from fedmpi.server.rounds import address
from fedmpi.server.sampling import addressed, participants
from fedmpi.settings import make_settings as settled

SIZES = (20, 1, 57, 3, 10, 33, 11, 8)      # training samples: short, whole and single batches
CPU = torch.device("cpu")
TRAIN = Train(batch=10, lr=.05, lr_decay=.9)


@cache
def pool():
    return registry.find_class("datasets", "digits")().load(Path())


class Digits:
    """Real digits in memory, split among clients by label skew: client i prefers digits near i."""
    classes = 10

    def __init__(self, sizes=SIZES, test: int = 12, image: bool = False):
        self.sizes, self.groups, self.fingerprint = np.array(sizes), None, "in memory"
        x, y, *_ = pool()
        if image:      # as image data sets are stored: (h, w, c) bytes
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
    """Another look at a federation: everything that is not redefined is the original's."""

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
    """Clients as real splits have them: one without test samples, one with a single class, one with a single sample
    (client 1 of SIZES)."""

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
    return build_model(MLP(hidden=16), (64,), np.dtype("float32"), 10, seed=5)


def cnn():
    return build_model(TinyCNN(), (8, 8, 1), np.dtype("uint8"), 10, seed=5)


def method(name: str, model, **settings):
    """Make a method by name, with settings checked as those of a configuration are."""
    return settled(registry.find_class("methods", name), settings, "method").with_model(model)


class Lab:
    """All ranks of a run, in this process or over `world`; rank 0's calls drive it."""
    training = TRAIN      # where none is given; the fixtures of tests/methods set it

    def __init__(self, method, federation, engine=None, train=None, share=1., seed=3, world=None, homes=None,
                 reduce="exact", device=CPU, gpu_direct=False, **sections):
        train = train or self.training
        self.method, self.federation, self.reduce = method, federation, reduce
        self.config = replace(resolve({"seed": seed}), train=replace(train, participation=share),
                              **{"server": Server(reduce=reduce), **sections})
        world = world or Solo()
        homes = np.zeros(len(federation.sizes), np.int64) if homes is None else np.asarray(homes)
        self.shared, first = method.init(len(homes))
        self.up = rehearse_loop(method, self.shared, first, blank_samples(federation.shape, federation.dtype))[1]
        at_work = method.with_model(method.model.to(device)) if device != CPU else method
        self.group = HostedClients(at_work, self.shared, first, engine or Loop(), federation,
                           np.flatnonzero(homes == world.rank), self.config, device)
        server = self.config.server
        robust = RobustMean.from_settings(server.aggregation, server.trim)
        self.pool = RankPool(world, self.group, homes, gpu_direct, robust)

    def who(self, t: int):
        return participants(self.config, t, self.federation.sizes)

    def train(self, t: int, who=None, judge=False):
        """Let the participants train; returns those whose updates are there."""
        who = who or self.who(t)
        told = addressed(self.config, self.federation.sizes, who, judge)
        address(self.pool, self.method, self.shared, told)
        return who.only(self.pool.train(t, who.ids, judge, self.shared))

    def apply(self, function, clients, t: int = 0, engine=None) -> dict:
        """Apply a function of a method to hosted clients; nothing is stored."""
        engine = engine or self.group.engine
        if self.method.message_template() is not None:
            ids = np.sort(np.array(clients))
            who = Participants(ids, self.federation.sizes[ids], t, self.config.seed)
            address(self.pool, self.method, self.shared, who)
        return dict(engine.apply(function, clients, self.shared, self.group, self.group.local(t)))

    def round(self, t: int, who=None, judge=False):
        who = self.train(t, who, judge)
        self.shared = self.method.server(self.shared, self.rows(), who)
        if judge:
            self.judge(t + 1)
        return who

    def open(self):
        """The round before the first one, of a method that has it."""
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
        return rows_of(self.pool, UP, self.up)

    def mine(self, client: int):
        return self.group.store.read(client)

    def digest(self) -> str:
        """As the result of a run has it."""
        total = hashlib.sha256(digest_of(self.shared))
        total.update(np.ascontiguousarray(self.pool.call(Order.DIGEST)).data)
        return total.hexdigest()

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the run has learned, by name."""
        out = {f"shared.{name}": value for name, value in self.shared._asdict().items()}
        for c in self.group.clients:
            out |= {f"client {c}.{name}": value for name, value in self.mine(c)._asdict().items()}
        return out


def apart(a: dict, b: dict) -> float:
    """Return the largest difference between two states; inf where their names or shapes differ."""
    if a.keys() != b.keys() or any(a[k].shape != b[k].shape for k in a):
        return float("inf")
    return max((float((a[k].double() - b[k].double()).abs().max()) for k in a if a[k].numel()), default=0.)
