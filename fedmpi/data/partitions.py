"""Divide the samples of one pool among the clients.

A partition is a frozen dataclass of settings with a `title` and

    assign(labels, clients, rng) -> parts, groups

`labels` (n,) are the classes of the samples, `parts` one array of sample indices per client (each index at
most once, no client without any), and `groups` (clients,) numbers the planted groups, or is None."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedmpi.errors import BadInput
from fedmpi.settings import Ge, Gt

LEAST_SHARE = .1        # of the largest possible one, where shares are drawn uneven
DRAWN_AT_ONCE = 200_000     # numbers: tries are vectorised, but a large problem must not fill the memory


@dataclass(frozen=True)
class Iid:
    """Every client's samples are drawn alike from the whole pool."""
    title = "iid"
    balanced: Annotated[bool, "equal shares; otherwise one is up to ten times another"] = True

    def assign(self, labels, clients: int, rng):
        enough(labels, clients)
        amounts = divide(len(labels), clients, None if self.balanced else rng)
        return np.split(rng.permutation(len(labels)), amounts.cumsum()[:-1]), None


@dataclass(frozen=True)
class Dirichlet:
    """Every class is divided among the clients in proportions drawn from Dir(beta)."""
    title = "dirichlet"
    beta: Annotated[float, Gt(0), "concentration: .1 is strongly skewed, 100 nearly iid"] = .1
    procedure: Annotated[Literal["capped", "plain"],
                         "capped: whoever holds n/N samples gets none of the classes that follow"] = "capped"
    smallest: Annotated[int | None, Ge(1),
                        "redraw until all clients have this; default: capped min(40, n/N/2), plain 2"] = None
    tries: Annotated[int, Ge(1), "draws before giving up"] = 10_000

    def assign(self, labels, clients: int, rng):
        enough(labels, clients)
        members = by_class(labels)
        amounts = self.search(np.array([len(m) for m in members]), clients, rng)
        return deal(members, amounts, rng), None

    def search(self, sizes, clients: int, rng):
        """Draw until the smallest client is large enough. Returns amounts (classes, clients)."""
        wanted, best, left = self.wanted(sizes.sum(), clients), 0, self.tries
        at_once = int(np.clip(DRAWN_AT_ONCE // (len(sizes) * clients), 1, 64))
        while left > 0:
            amounts = self.draw(sizes, clients, min(at_once, left), rng)
            smallest = amounts.sum(1).min(1)
            if (smallest >= wanted).any():
                return amounts[np.argmax(smallest >= wanted)]
            best, left = max(best, int(smallest.max())), left - at_once
        raise BadInput(
            f"data.partition: dirichlet(beta={self.beta:g}, {self.procedure}) was drawn {self.tries} times "
            f"for {clients} clients and {sizes.sum()} samples, and the smallest client never had {wanted} "
            f"samples (best draw: {best}); raise data.partition.beta or data.partition.tries, or lower "
            "data.clients or data.partition.smallest")

    def wanted(self, samples: int, clients: int) -> int:
        if self.smallest is not None:
            return self.smallest
        usual = min(40, samples / clients / 2) if self.procedure == "capped" else min(2, samples // clients)
        return max(1, int(np.ceil(usual)))

    def draw(self, sizes, clients: int, tries: int, rng):
        """Draw amounts (tries, classes, clients) independently; a failed try is all zero."""
        shares = rng.dirichlet(np.full(clients, self.beta), (tries, len(sizes)))
        amounts = np.zeros(shares.shape, np.int64)
        held = np.zeros((tries, clients), np.int64)
        for k, size in enumerate(sizes):
            if self.procedure == "capped":
                shares[:, k] *= held < sizes.sum() / clients
            with np.errstate(invalid="ignore", divide="ignore"):     # 0/0: no client with room has a share
                edges = np.cumsum(shares[:, k] / shares[:, k].sum(1, keepdims=True), 1) * size
            # a random offset: rounding down would favour the last client, even a full one, and would starve
            # the same clients in every class when there are more clients than samples of a class
            edges = np.floor(np.nan_to_num(edges) + rng.uniform(1e-6, 1 - 1e-6, (tries, 1)))
            amounts[:, k] = np.diff(edges.astype(np.int64), prepend=0)
            held += amounts[:, k]
        amounts[held.sum(1) != sizes.sum()] = 0
        return amounts


@dataclass(frozen=True)
class Pathological:
    """Clients form consecutive blocks, the planted groups; all clients of a block hold the same few classes.

    There are as few blocks as hold all classes; where the numbers do not divide, the last block takes the
    first classes again and the blocks differ by one client."""
    title = "pathological"
    classes_per_client: Annotated[int, Ge(1), "classes that every client holds"] = 2
    balanced: Annotated[bool, "equal shares of a class; otherwise one is up to ten times another"] = False

    def assign(self, labels, clients: int, rng):
        enough(labels, clients)
        members = by_class(labels)
        groups, held = self.blocks(len(members), clients)
        amounts = np.zeros((len(members), clients), np.int64)
        for k, indices in enumerate(members):
            holders = np.flatnonzero((held[groups] == k).any(1))
            if len(indices) < len(holders):
                raise BadInput(f"data.partition: class {labels[indices[0]]} has {len(indices)} samples for "
                               f"{len(holders)} clients; lower data.clients or "
                               "data.partition.classes_per_client")
            amounts[k, holders] = divide(len(indices), len(holders), None if self.balanced else rng)
        return deal(members, amounts, rng), groups

    def blocks(self, classes: int, clients: int):
        """Return each client's block (clients,) and each block's classes (blocks, classes_per_client)."""
        each = self.classes_per_client
        if each > classes:
            raise BadInput(f"data.partition.classes_per_client = {each}: the data set has {classes} classes; "
                           "lower it")
        blocks = -(-classes // each)
        if clients < blocks:
            raise BadInput(f"data.partition: {clients} clients with {each} of {classes} classes each leave "
                           f"classes that nobody holds; set data.clients to {blocks} or more, or "
                           f"data.partition.classes_per_client to {-(-classes // clients)} or more")
        held = np.arange(blocks * each).reshape(blocks, each) % classes
        return np.arange(clients) * blocks // clients, held


BUILT_IN = {"iid": Iid, "dirichlet": Dirichlet, "pathological": Pathological}


def enough(labels, clients: int):
    if clients > len(labels):
        raise BadInput(f"data.clients = {clients}: the data set has only {len(labels)} samples; lower it")


def by_class(labels) -> list:
    """List the sample indices of every class that occurs, in the order of the classes."""
    _, counts = np.unique(labels, return_counts=True)
    return np.split(np.argsort(labels, kind="stable"), counts.cumsum()[:-1])


def divide(total: int, parts: int, rng=None):
    """Cut `total` >= `parts` into amounts (parts,) of at least 1: equal within one, or drawn with `rng`."""
    weights = np.ones(parts) if rng is None else rng.uniform(LEAST_SHARE, 1, parts)
    edges = np.rint(np.cumsum(weights / weights.sum()) * (total - parts)).astype(np.int64)
    return 1 + np.diff(edges, prepend=0)


def deal(members: list, amounts, rng) -> list:
    """Shuffle every class and hand it out by amounts (classes, clients). Returns each client's indices."""
    piles = [np.split(rng.permutation(m), row.cumsum()[:-1]) for m, row in zip(members, amounts, strict=True)]
    return [np.concatenate(hand) for hand in zip(*piles, strict=True)]
