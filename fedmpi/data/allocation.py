"""Amounts: how many samples of each class each client gets, and the dealing out. Legend: c classes, n clients."""
from __future__ import annotations

import numpy as np

from fedmpi.errors import BadInput

LEAST_SHARE = .1        # of the largest possible one, where shares are drawn uneven
DRAWN_AT_ONCE = 200_000     # numbers: tries are vectorised, but a large problem must not fill the memory


def enough(labels, clients: int):
    if clients > len(labels):
        raise BadInput(f"data.clients = {clients}: the data set has only {len(labels)} samples; lower it")


def offered(setting: str, each: int, classes: int):
    """Refuse more classes than the data have."""
    if each > classes:
        raise BadInput(f"data.partition.{setting} = {each}: the data set has {classes} classes; lower it")


def covered(setting: str, each: int, classes: int, holders: int, what: str = "clients", more: str = "data.clients",
            times: int = 1):
    """Refuse to leave classes that nobody holds; `more` is the setting whose `times`-th part is `holders`."""
    if holders * each < classes:
        raise BadInput(f"data.partition: {holders} {what} with {each} of {classes} classes each leave classes that "
                       f"nobody holds; set {more} to {-(-classes // each) * times} or more, or "
                       f"data.partition.{setting} to {-(-classes // holders)} or more")


def by_class(labels) -> list:
    """List the sample indices of every class that occurs, in the order of the classes."""
    _, counts = np.unique(labels, return_counts=True)
    return np.split(np.argsort(labels, kind="stable"), counts.cumsum()[:-1])


def blocks(clients: int, clusters: int):
    """Return the cluster of every client (n,): consecutive blocks, alike within one."""
    if clients < clusters:
        raise BadInput(f"data.partition.clusters = {clusters}: there are {clients} clients; lower it, or raise "
                       "data.clients")
    return np.arange(clients) * clusters // clients


def divide(total: int, parts: int, rng=None):
    """Cut `total` >= `parts` into amounts (parts,) of at least 1: equal within one, or drawn with `rng`."""
    weights = np.ones(parts) if rng is None else rng.uniform(LEAST_SHARE, 1, parts)
    edges = np.rint(np.cumsum(weights / weights.sum()) * (total - parts)).astype(np.int64)
    return 1 + np.diff(edges, prepend=0)


def deal(members: list, amounts, rng) -> list:
    """Shuffle every class and hand it out by amounts (c, n); the rest is left out. Returns each client's indices."""
    piles = [np.split(rng.permutation(m)[:row.sum()], row.cumsum()[:-1])
             for m, row in zip(members, amounts, strict=True)]
    return [np.concatenate(hand) for hand in zip(*piles, strict=True)]


def share_classes(labels, held, rng, balanced: bool = True) -> list:
    """Divide every class among the clients that hold it, held (n, c). Returns each client's indices."""
    members = by_class(labels)
    amounts = np.zeros(held.T.shape, np.int64)
    for k, indices in enumerate(members):
        holders = np.flatnonzero(held[:, k])
        scarce(labels, indices, len(holders))
        if len(holders):
            amounts[k, holders] = divide(len(indices), len(holders), None if balanced else rng)
    return deal(members, amounts, rng)


def scarce(labels, indices, holders: int):
    """Refuse a class (its sample indices) that has not one sample for each of its holders."""
    if len(indices) < holders:
        raise BadInput(f"data.partition: class {labels[indices[0]]} has {len(indices)} samples for {holders} clients; "
                       "lower data.clients or the number of classes that a client holds")


def choose(classes: int, each, rng):
    """Draw each[i] classes for client i, all classes equally often, within one. Returns held (n, c)."""
    held, often = np.zeros((len(each), classes), bool), np.zeros(classes)
    for i in rng.permutation(len(each)):
        mine = np.argsort(often + .5 * rng.random(classes))[:each[i]]      # the rarest, ties at random
        held[i, mine] = True
        often[mine] += 1
    return held


def dirichlet(sizes, clients: int, beta: float, tries: int, rng, capped: bool = False):
    """Draw amounts (tries, c, n) of classes with `sizes` samples from Dir(beta); a failed try is all zero."""
    shares = rng.dirichlet(np.full(clients, beta), (tries, len(sizes)))
    amounts = np.zeros(shares.shape, np.int64)
    held = np.zeros((tries, clients), np.int64)
    for k, size in enumerate(sizes):
        if capped:
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


def mix(left, shares, total: int, rng):
    """Draw `total` samples, one after another, by the shares (c,) of the classes that still have some of their `left`
    (c,). Returns amounts (c,). Where no class with a share has any, the shares are those of what is left."""
    taken = np.zeros_like(left)
    while (missing := total - taken.sum()) > 0:      # a pass fills the client, or uses a class up
        wanted = np.where(left > taken, shares, 0.)
        if not wanted.sum() > 0:
            wanted = (left - taken).astype(float)
        taken = np.minimum(left, taken + rng.multinomial(missing, wanted / wanted.sum()))
    return taken


def redraw(sizes, clients: int, beta: float, wanted: int, tries: int, rng, capped: bool = False):
    """Draw until the smallest client has `wanted`. Returns amounts (c, n), or None, and the best draw's smallest."""
    best, left = 0, tries
    at_once = int(np.clip(DRAWN_AT_ONCE // (len(sizes) * clients), 1, 64))
    while left > 0:
        amounts = dirichlet(sizes, clients, beta, min(at_once, left), rng, capped)
        smallest = amounts.sum(1).min(1)
        best, left = max(best, int(smallest.max())), left - at_once
        if best >= wanted:
            return amounts[np.argmax(smallest >= wanted)], best
    return None, best
