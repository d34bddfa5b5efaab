"""Decide how many samples of each class each client gets, and hand them out.

Legend of shapes: n clients, c classes."""
from __future__ import annotations

import sys
import time

import numpy as np

from fedmpi.errors import BadInput

# If uneven shares are drawn, the smallest possible weight is this part of the largest possible one.
LEAST_SHARE = .1
# Several tries are drawn at once for speed. This bounds how many numbers are in memory, even for a large problem.
DRAWN_AT_ONCE = 200_000
# Seconds between two lines that say how far a search is.
REPORT_S = 10.


def refuse_too_few_samples(labels: np.ndarray, clients: int, smallest: int | None = None,
                           setting: str = "smallest") -> None:
    """Refuse more clients than there are samples, or than can have `smallest` of them each, as the `setting` of a
    partition says; `labels` has one entry per sample. Raises BadInput."""
    if clients > len(labels):
        raise BadInput(f"data.clients = {clients}: the data set has only {len(labels)} samples; lower it")
    if smallest is not None and smallest > (most := len(labels) // clients):
        raise BadInput(f"data.partition.{setting} = {smallest}: the data set has {most} samples for each of {clients} "
                       "clients; lower it, or data.clients")


def refuse_too_many_classes(setting: str, each: int, classes: int) -> None:
    """Refuse the value `each` of a setting if it asks for more classes than the data set has. Raises BadInput."""
    if each > classes:
        raise BadInput(f"data.partition.{setting} = {each}: the data set has {classes} classes; lower it")


def refuse_uncovered(setting: str, each: int, classes: int, holders: int, what: str = "clients",
                     more: str = "data.clients", times: int = 1) -> None:
    """Refuse settings that leave classes without a holder.

    Args:
        setting: the name of the setting that gives `each`.
        each: how many classes each holder has.
        classes: how many classes there are.
        holders: how many holders there are.
        what: the word for the holders in the message.
        more: the setting that gives `holders` when it is divided by `times`.
        times: see `more`.

    Raises BadInput if `holders` times `each` is less than `classes`."""
    if holders * each < classes:
        raise BadInput(f"data.partition: {holders} {what} with {each} of {classes} classes each leave classes that "
                       f"nobody holds; set {more} to {-(-classes // each) * times} or more, or "
                       f"data.partition.{setting} to {-(-classes // holders)} or more")


def list_samples_by_class(labels: np.ndarray) -> list[np.ndarray]:
    """List the sample indices of every class that occurs, in the order of the classes."""
    _, counts = np.unique(labels, return_counts=True)
    return np.split(np.argsort(labels, kind="stable"), counts.cumsum()[:-1])


def assign_blocks(clients: int, clusters: int) -> np.ndarray:
    """Return the cluster of every client (n,); the clusters are consecutive blocks, whose sizes differ by at most one.

    Raises BadInput if there are fewer clients than clusters."""
    if clients < clusters:
        raise BadInput(f"data.partition.clusters = {clusters}: there are {clients} clients; lower it, or raise "
                       "data.clients")
    return np.arange(clients) * clusters // clients


def divide_total(total: int, parts: int, rng: np.random.Generator | None = None) -> np.ndarray:
    """Cut `total`, which is at least `parts`, into amounts (parts,) of at least 1.

    Without `rng` the amounts differ by at most one. With it they are drawn: see LEAST_SHARE."""
    weights = np.ones(parts) if rng is None else rng.uniform(LEAST_SHARE, 1, parts)
    edges = np.rint(np.cumsum(weights / weights.sum()) * (total - parts)).astype(np.int64)
    return 1 + np.diff(edges, prepend=0)


def deal_classes(members: list[np.ndarray], amounts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffle the samples of every class and hand them out.

    Args:
        members: the sample indices of every class.
        amounts: how many samples of each class each client gets, (c, n); the other samples are left out.
        rng: the generator that shuffles.

    Returns the sample indices of each client."""
    piles = [np.split(rng.permutation(m)[:row.sum()], row.cumsum()[:-1])
             for m, row in zip(members, amounts, strict=True)]
    return [np.concatenate(hand) for hand in zip(*piles, strict=True)]


def share_classes(labels: np.ndarray, held: np.ndarray, rng: np.random.Generator,
                  balanced: bool = True) -> list[np.ndarray]:
    """Divide every class among the clients that hold it.

    Args:
        labels: the class of every sample.
        held: whether a client holds a class, (n, c).
        rng: the generator that shuffles, and draws the shares if they are uneven.
        balanced: whether the holders of a class get equal shares.

    Returns the sample indices of each client. Raises BadInput if a class has fewer samples than holders."""
    members = list_samples_by_class(labels)
    amounts = np.zeros(held.T.shape, np.int64)
    for k, indices in enumerate(members):
        holders = np.flatnonzero(held[:, k])
        refuse_scarce_class(labels, indices, len(holders))
        if len(holders):
            amounts[k, holders] = divide_total(len(indices), len(holders), None if balanced else rng)
    return deal_classes(members, amounts, rng)


def refuse_scarce_class(labels: np.ndarray, indices: np.ndarray, holders: int) -> None:
    """Refuse a class, given by its sample indices, that has fewer samples than holders. Raises BadInput."""
    if len(indices) < holders:
        raise BadInput(f"data.partition: class {labels[indices[0]]} has {len(indices)} samples for {holders} clients; "
                       "lower data.clients or the number of classes that a client holds")


def draw_classes(classes: int, each: list[int] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw each[i] classes for client i, so that the classes are drawn equally often; the counts differ by at most one.

    Returns whether a client holds a class, (n, c)."""
    held, often = np.zeros((len(each), classes), bool), np.zeros(classes)
    for i in rng.permutation(len(each)):
        # The client takes the classes that were drawn least often; ties are broken at random.
        mine = np.argsort(often + .5 * rng.random(classes))[:each[i]]
        held[i, mine] = True
        often[mine] += 1
    return held


def divide_by_dirichlet(sizes: np.ndarray, clients: int, beta: float, tries: int, rng: np.random.Generator,
                        capped: bool = False) -> np.ndarray:
    """Divide every class among the clients in proportions drawn from Dir(beta), `tries` times.

    Args:
        sizes: the samples of every class, (c,).
        clients: n.
        beta: the concentration.
        tries: how many independent draws are made.
        rng: the generator.
        capped: give no more classes to a client that has its n-th part of all samples.

    Returns how many samples of each class each client gets in each try, (tries, c, n); zeros for a try that failed
    to hand out all samples."""
    shares = rng.dirichlet(np.full(clients, beta), (tries, len(sizes)))
    amounts = np.zeros(shares.shape, np.int64)
    held = np.zeros((tries, clients), np.int64)
    for k, size in enumerate(sizes):
        if capped:
            shares[:, k] *= held < sizes.sum() / clients
        # The division is 0/0 if no client that has room left has a share of this class.
        with np.errstate(invalid="ignore", divide="ignore"):
            edges = np.cumsum(shares[:, k] / shares[:, k].sum(1, keepdims=True), 1) * size
        # A random offset is added before rounding down. Without it the last client would be favoured, even if it is
        # full, and if there are more clients than samples of a class the same clients would get none of every class.
        edges = np.floor(np.nan_to_num(edges) + rng.uniform(1e-6, 1 - 1e-6, (tries, 1)))
        amounts[:, k] = np.diff(edges.astype(np.int64), prepend=0)
        held += amounts[:, k]
    amounts[held.sum(1) != sizes.sum()] = 0
    return amounts


def draw_labels_of_client(left: np.ndarray, shares: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the classes of `total` samples for one client.

    Args:
        left: how many samples of each class are left, (c,); `total` is at most their sum.
        shares: the probabilities of the classes, (c,). A class that has run out takes no part. If no class with a
            share has samples left, the classes are drawn in proportion to what is left of them.
        total: how many samples to draw.
        rng: the generator.

    Returns the amount of each class, (c,)."""
    taken = np.zeros_like(left)
    # Every pass fills the client or uses up a class.
    while (missing := total - taken.sum()) > 0:
        wanted = np.where(left > taken, shares, 0.)
        if not wanted.sum() > 0:
            wanted = (left - taken).astype(float)
        taken = np.minimum(left, taken + rng.multinomial(missing, wanted / wanted.sum()))
    return taken


def redraw_until_large(sizes: np.ndarray, clients: int, beta: float, wanted: int, tries: int, rng: np.random.Generator,
                       capped: bool = False) -> tuple[np.ndarray | None, int]:
    """Repeat `divide_by_dirichlet`, at most `tries` times, until the smallest client has at least `wanted` samples.

    Returns the amounts (c, n), or None if no draw was good enough, and the size of the smallest client in the best
    draw."""
    best, left, reported = 0, tries, time.monotonic()
    at_once = int(np.clip(DRAWN_AT_ONCE // (len(sizes) * clients), 1, 64))
    while left > 0:
        amounts = divide_by_dirichlet(sizes, clients, beta, min(at_once, left), rng, capped)
        smallest = amounts.sum(1).min(1)
        best, left = max(best, int(smallest.max())), left - at_once
        if best >= wanted:
            return amounts[np.argmax(smallest >= wanted)], best
        if time.monotonic() - reported > REPORT_S:
            reported = time.monotonic()
            print(f"data.partition: {tries - left:,} of {tries:,} draws so far; in the best one the smallest of "
                  f"{clients:,} clients had {best} of {wanted} samples", file=sys.stderr, flush=True)
    return None, best
