"""How fast this process trains: a few short rounds on the real network and the real data, without evaluation."""
from __future__ import annotations

import time

import numpy as np

from fedmpi.assembly import build_parts
from fedmpi.comm.orders import UP
from fedmpi.comm.rows import make_rows
from fedmpi.comm.transport import Solo
from fedmpi.config.schema import resolve
from fedmpi.data.federation import Federation
from fedmpi.json_values import JsonObject
from fedmpi.method import Participants


def time_rounds(federation: Federation, settings: JsonObject, participants: int, rounds: int) -> list[float]:
    """Train `participants` clients in each of some rounds, in this process alone; return the seconds of each round.

    The first round warms up: libraries are loaded and memory is laid out in it."""
    parts = build_parts(Solo(), resolve(settings), federation, server_host="")
    shared, seconds = parts.shared, []
    for t in range(rounds):
        drawn = np.random.default_rng(t).permutation(federation.clients)[:participants]
        ids = np.sort(drawn).astype(np.int64)
        begin = time.perf_counter()
        parts.pool.train(t, ids, False, shared)
        rows = make_rows(parts.pool, UP, parts.up)
        shared = parts.method.server(shared, rows, Participants(ids, federation.sizes[ids], t, 0,
                                                                len(federation.sizes)))
        seconds.append(time.perf_counter() - begin)
    return seconds
