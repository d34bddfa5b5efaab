"""Sampling of the clients that take part in a round."""
from __future__ import annotations

import numpy as np

from fedmpi.config.schema import Config
from fedmpi.method import Participants

# Keeps this use of the seed apart from others.
PARTICIPANTS_STREAM = 0x9A27


def draw_participants(config: Config, t: int, sizes: np.ndarray) -> Participants:
    """Draw the participants of round t, at least one, by (seed, t) alone.

    Args:
        sizes: training samples of each client, (N,)."""
    share, n = config.train.participation, len(sizes)
    generator = np.random.default_rng((config.seed, t, PARTICIPANTS_STREAM))
    if isinstance(share, tuple):
        share = generator.uniform(*share)
    ids = np.sort(generator.choice(n, max(1, round(share * n)), replace=False)).astype(np.int64)
    return Participants(ids, sizes[ids], t, config.seed, n)


def choose_addressed(config: Config, sizes: np.ndarray, who: Participants, judge: bool) -> Participants:
    """Return whom the server addresses in a round: the participants, or all clients if all are judged after it.

    Args:
        sizes: training samples of each client, (N,).
        who: the participants.
        judge: clients are judged after this round."""
    if not judge or config.evaluate.after_training != "all":
        return who
    everybody = Participants(np.arange(len(sizes)), sizes, who.round, who.seed, who.clients)
    # The same dictionary, so that what `messages` reports belongs to the round.
    everybody.facts = who.facts
    return everybody
