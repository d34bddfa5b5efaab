"""Sampling of the clients that take part in a round."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedmpi.clients.checked_method import CheckedMethod
from fedmpi.config.schema import Config
from fedmpi.method import Participants

# Keeps this use of the seed apart from others.
PARTICIPANTS_STREAM = 0x9A27


def count_participants(share: float, clients: int) -> int:
    """Return how many of some clients a share of them is: at least one.

    Args:
        share: `train.participation`, or what was drawn between its two bounds."""
    return max(1, round(share * clients))


def draw_participants(config: Config, t: int, sizes: np.ndarray, available: np.ndarray | None = None,
                      measure: Callable[[np.ndarray], np.ndarray] | None = None) -> Participants:
    """Draw the participants of round t by (seed, t) and what is given here: at least one, if anybody is available.

    Args:
        sizes: training samples of each client, (N,).
        available: which clients can take part, (N,) bool; None: all.
        measure: returns the losses (d,) of clients, ascending numbers (d,), for sampling loss."""
    share, n = config.train.participation, len(sizes)
    generator = np.random.default_rng((config.seed, t, PARTICIPANTS_STREAM))
    if isinstance(share, tuple):
        share = generator.uniform(*share)
    there = np.arange(n) if available is None else np.flatnonzero(available)
    count = min(count_participants(share, n), len(there))
    if config.train.sampling == "size":
        chosen = draw_by_size(sizes[there], count, generator)
    elif config.train.sampling == "loss" and count:
        assert measure is not None
        d = min(config.train.candidates or 2 * count, len(there))
        drawn = generator.choice(len(there), d, replace=False, p=sizes[there] / sizes[there].sum())
        candidates = there[np.sort(drawn)].astype(np.int64)
        chosen = np.searchsorted(there, choose_highest(candidates, measure(candidates), count))
    else:
        chosen = generator.choice(len(there), count, replace=False)
    ids = np.sort(there[chosen]).astype(np.int64)
    return make_participants(config, t, sizes, ids)


def make_participants(config: Config, t: int, sizes: np.ndarray, ids: np.ndarray) -> Participants:
    """Return clients `ids` (n,) as the participants of round t, of all clients with training samples `sizes` (N,)."""
    return Participants(ids, sizes[ids], t, config.seed, len(sizes), config.train.rate_factor(t, config.rounds))


def draw_by_size(sizes: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return the positions of `count` clients, each drawn with a probability proportional to its samples: systematic
    sampling in a random order (Madow 1949). A client for which that would exceed 1 is always drawn.

    Args:
        sizes: training samples of each, (n,)."""
    certain = np.zeros(len(sizes), bool)
    while True:
        left, others = count - certain.sum(), sizes[~certain].sum()
        chances = np.where(certain | (others == 0), 0., left * sizes / max(others, 1))
        if not (chances >= 1).any():
            break
        certain |= chances >= 1
    order = generator.permutation(np.flatnonzero(~certain))
    marks = generator.random() + np.arange(left)
    # rounding must not push the last mark beyond the last client
    places = np.minimum(np.searchsorted(chances[order].cumsum(), marks, side="right"), len(order) - 1)
    return np.concatenate([np.flatnonzero(certain), order[places]])


def choose_highest(ids: np.ndarray, losses: np.ndarray, count: int) -> np.ndarray:
    """Return the `count` clients of `ids` (d,) whose losses (d,) are highest; of equals the lower numbers, and those
    that are not finite first."""
    return ids[np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable")[:count]]


def choose_addressed(
    config: Config, checked: CheckedMethod, sizes: np.ndarray, who: Participants, evaluates: bool
) -> Participants:
    """Return whom the server addresses in a round: the participants, or all clients if all are evaluated right
    after training.

    Args:
        checked: the method. If it has no model right after training, only the participants are addressed.
        sizes: training samples of each client, (N,).
        who: the participants.
        evaluates: clients are evaluated right after their training in this round."""
    if not (evaluates and config.evaluate.after_training == "all" and checked.may_differ_after_training):
        return who
    everybody = Participants(np.arange(len(sizes)), sizes, who.round, who.seed, who.clients, who.decay)
    # The same dictionary, so that what `messages` reports belongs to the round.
    everybody.facts = who.facts
    return everybody
