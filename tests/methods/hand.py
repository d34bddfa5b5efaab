"""Stand-ins to work out methods by hand: rows in one array, and a client whose training and losses are given."""
from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from fedmpi import registry
from fedmpi.method import Participants


class Part(str):
    """A part of a network without running statistics, by its name."""
    buffers, trainable = (), (slice(None),)


# what a network without running statistics says of these
PLAIN = {"buffers": (), "trainable": (slice(None),)}


def bare(name: str, model=None, net=None, rear=None, **settings):
    """Return a method without a network; `model` stands in for what the method uses of it. No row equals its start."""
    model = model or SimpleNamespace(**PLAIN, head=Part("head"), start=torch.tensor(torch.inf))
    parts = {"model": model, "net": net, "tail": rear}
    return registry.find_class("methods", name)(**settings, **{k: v for k, v in parts.items() if v is not None})


def network(start, phi: int = 0):
    """Return what methods use of a network: its start, and where its head begins."""
    start = torch.tensor(start)
    return SimpleNamespace(start=start, phi=slice(0, phi), h=slice(phi, len(start)), size=len(start), **PLAIN,
                           base=Part("base"), head=Part("head"), module=torch.nn.Identity(),
                           join=lambda phi, h: torch.cat([phi, h], -1))


def state(name: str, field: str = "Shared", **values):
    """Make a method's Shared, Mine or Up from plain numbers."""
    cls = getattr(__import__(f"fedmpi.methods.{name}", fromlist=[field]), field)
    return cls(**{k: v if isinstance(v, torch.Tensor) else torch.tensor(v) for k, v in values.items()})


def who(ids, sizes, t: int = 0, decay: float = 1.) -> Participants:
    return Participants(np.array(ids), np.array(sizes), t, 3, decay=decay)


def up(**fields):
    return SimpleNamespace(**{name: Sent(rows) for name, rows in fields.items()})


class Sent:
    """The rows of one field of all participants, (n, d), as the server's handle on them would see them."""

    def __init__(self, rows):
        rows = torch.as_tensor(rows)
        self.rows = rows[:, None] if rows.ndim == 1 else rows

    def __getitem__(self, block):
        return Sent(self.rows[:, block])

    def gather(self):
        return self.rows

    def sum(self, weight=None):
        return (self.rows if weight is None else torch.as_tensor(weight)[:, None] * self.rows).sum(0)

    def mean(self, weight=None):
        return torch.from_numpy(np.average(self.rows.double().numpy(), 0, weight)).float()

    def mean_by(self, group, k, old, weight=None):
        group, weight = np.asarray(group), np.ones(len(self.rows)) if weight is None else np.asarray(weight)
        return torch.stack([self[:].of(group == j).mean(weight[group == j]) if (group == j).any() else old[j]
                            for j in range(k)])

    def of(self, chosen):
        return Sent(self.rows[torch.from_numpy(chosen)])

    def gram(self, origin=None, beside=None, blocks=(slice(None),)):
        rows = torch.cat([self.rows, *([] if beside is None else [beside])]).double()
        rows = keep_blocks(rows if origin is None else rows - origin.double(), blocks)
        return rows @ rows.T

    def distances(self, group, centres, blocks=(slice(None),)):
        apart = keep_blocks(self.rows.double() - centres.double()[np.asarray(group, int)], blocks)
        return torch.from_numpy(np.linalg.norm(apart, axis=1))

    def combine(self, weights):
        return (torch.as_tensor(weights) @ self.rows.double()).float()

    def mix(self, coefficients):
        return np.asarray(coefficients)


def keep_blocks(rows, blocks):
    """Return the columns (n, ...) of rows (n, d) that count."""
    return torch.cat([rows[:, block] for block in blocks], 1)


class Client:
    """A client whose training adds `step`, and whose loss at w is `loss(w)`; `calls` lists the calls of its verbs."""

    def __init__(self, number=0, step=0., loss=None, n=1, message=None, lr=.5):
        self.id, self.step, self.loss, self.n = torch.tensor(number), torch.as_tensor(step), loss, n
        self.message, self.lr, self.full_lr, self.decay, self.calls = message, lr, 2 * lr, .5, []

    def any_client(self, flag):
        return bool(flag)

    def descend(self, net, w, **settings):
        self.calls.append(("descend", settings))
        return w + self.step

    def mean_loss(self, net, w):
        return torch.as_tensor(self.loss(w))

    def choose_model(self, net, models):
        return torch.stack([self.mean_loss(net, w) for w in models]).argmin()

    def once(self, function, *tensors):
        return function(*tensors, self)

    def one_by_one(self, function, *tensors):
        return function(*tensors)

    def subset(self, share, stream, fixed=False, rest=False):
        self.calls.append(("subset", (round(share, 6), stream, fixed, rest)))
        return self

    def with_features(self, net, w):
        self.calls.append(("with_features", (net, w.tolist())))
        return self

    def with_batches(self, *args, **kwargs):
        self.calls.append(("with_batches", args))
        return self


def same(found, expected, atol=1e-6):
    torch.testing.assert_close(torch.as_tensor(found).double(), torch.tensor(expected, dtype=torch.float64), rtol=0,
                               atol=atol)
