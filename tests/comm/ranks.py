"""Run by mpiexec: every collective of the world, and every verb of Rows on several ways of hosting the clients.

`python -m tests.comm.ranks RESULTS.npz HOSTINGS METHODS`: rank 0 saves what it got; tests/comm/test_ranks.py compares
it with NumPy. HOSTINGS are ways of hosting, separated by commas. If METHODS is `True`, methods of each kind are trained
on the ranks, too, and their digests are printed."""
from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from fedmpi.comm import mpi_world as worlds
from fedmpi.comm import robust
from fedmpi.comm.mpi_world import open_world
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.comm.rank_pool import HEADER_BYTES, RankPool
from fedmpi.comm.robust import RobustMean
from fedmpi.data.federation import Samples
from fedmpi.engines.loop import Loop
from fedmpi.method import Method, Participants
from fedmpi.models.nets import MLP
from fedmpi.testing.variants import compute_hosted_digest
from tests import federations
from tests.methods.table import KINDS

N, D, K = 9, 40, 4
DTYPES = ("uint8", "int32", "int64", "float32", "float64", "bool")
HOSTING = ("balanced", "one", "reversed", "server", "shuffled", "straight")
# Ways of hosting for which sums in single precision are tested, too.
SINGLE = ("balanced", "straight")
WHO = {"all": list(range(N)), "some": [1, 4, 5, 8], "single": [6]}
# Group 1 is empty.
GROUP = np.array([0, 2, 2, 0, 3, 3, 3, 0, 2])


def row(client: int) -> np.ndarray:
    """Return what a client sends."""
    scale = np.logspace(-5, 2, D)
    return (np.random.default_rng(client).standard_normal(D) * scale).astype(np.float32)


def weights(ids) -> np.ndarray:
    return np.array([3., 1, 4, 1, 5, 9, 2, 6, 5])[ids]


def piece(rank: int, dtype: str) -> np.ndarray:
    """Return a rank's part of a reduction, (5, 7)."""
    return (np.arange(35).reshape(5, 7) * (rank + 1) % 11).astype(dtype)


def uneven(rank: int, dtype: str) -> np.ndarray:
    """Return a rank's rows to gather: 0, 2, 1, 0, 2, ... of them, (n, 3, 2)."""
    return (np.arange(count(rank) * 6).reshape(-1, 3, 2) + 100 * (rank % 2)).astype(dtype)


def count(rank: int) -> int:
    return (0, 2, 1)[rank % 3]


class Up(NamedTuple):
    other: torch.Tensor
    v: torch.Tensor
    told: torch.Tensor
    twice: torch.Tensor


class Message(NamedTuple):
    one: torch.Tensor
    two: torch.Tensor


class Nobody(NamedTuple):
    pass


@dataclass(frozen=True)
class Echo(Method):
    """Every client sends its single sample, and the message that it received."""
    title = "Echo"

    def init(self, n):
        return Nobody(), Nobody()

    def client(self, shared, mine, data):
        return mine, Up(data.x[0, :3] * 0 + 1, data.x[0].clone(), *(data.message or self.message_template()))

    def message_template(self):
        return Message(torch.zeros(D), torch.zeros(2, 16))


class Rows:
    """A federation of one sample per client, which is its row."""
    sizes, shape, dtype, classes = np.ones(N, np.int64), (D,), np.dtype("float32"), 2

    def client(self, i):
        x, y = row(i)[None], np.zeros(1, np.int64)
        return Samples(x, y, x[:0], y[:0], x[:0], y[:0])


def collectives(world) -> dict:
    out = {}
    for dtype in DTYPES:
        buffer = piece(0 if world.rank == 0 else 7, dtype)
        world.broadcast_header(np.zeros(2, np.int64))
        out[f"broadcast {dtype}"] = everywhere(world, world.broadcast(buffer))
        counts = np.array([count(r) for r in range(world.size)])
        out[f"gather {dtype}"] = world.gather(uneven(world.rank, dtype), counts)
        if dtype in ("int64", "float32", "float64"):
            out[f"reduce {dtype}"] = world.reduce(piece(world.rank, dtype))
    return out


# Lengths of an order's array. With its frame it fits into the header, or just does not, or it is long.
LENGTHS = (0, 1, *range(HEADER_BYTES - 80, HEADER_BYTES + 9, 8), 3 * HEADER_BYTES)


class Listener:
    """Takes the place of hosted clients and keeps what orders bring."""
    device = torch.device("cpu")

    def __init__(self):
        self.heard = []

    def receive_shared(self, fresh, arrays):
        self.heard = [len(arrays), *fresh, *(isinstance(a, torch.Tensor) for a in arrays), *(a.sum() for a in arrays)]

    def time_engines(self) -> np.ndarray:
        return np.array(self.heard, float)

    def use_engine(self, text: str):
        self.heard.append(sum(map(ord, text)))


def lengths(world) -> dict:
    """Give orders of all lengths; return what every rank received."""
    pool = RankPool(world, Listener(), np.zeros(1, np.int64))
    if world.rank:
        pool.serve()
    else:
        for n in LENGTHS:
            pool.call(OrderPerformer.use_engine, text(n))
        pool.call(OrderPerformer.stop, np.int64(0))
    return {"orders": everywhere(world, np.array(pool.hosted.heard))}


def news(world) -> dict:
    """Send a server's state twice, the second time only one field; return what every rank received.

    At odd ranks MPI writes straight into the memory of the tensors."""
    pool = RankPool(world, Listener(), np.zeros(1, np.int64), gpu_direct=world.rank % 2 == 1)
    if world.rank:
        pool.serve()
        return {}
    state = [torch.arange(HEADER_BYTES).float(), torch.tensor(3), torch.ones(2, HEADER_BYTES, dtype=torch.int64)]
    whole = pool.call(OrderPerformer.time_engines, *pool.list_changed_fields(state))
    part = pool.call(OrderPerformer.time_engines, *pool.list_changed_fields([state[0] + 1, *state[1:]]))
    pool.call(OrderPerformer.stop, np.int64(0))
    return {"news": whole, "less news": part}


def text(n: int) -> np.ndarray:
    return (np.arange(n) % 100).astype(np.uint8)


def everywhere(world, buffer) -> np.ndarray:
    """Return every rank's copy of a buffer, at rank 0."""
    return world.gather(buffer[None], np.ones(world.size, np.int64))


def hosting(how: str, size: int) -> np.ndarray:
    """Return each client's rank; with `one` only the last rank has clients."""
    first = min(1, size - 1) if how not in ("server", "straight") else 0
    spread = first + np.arange(N) % (size - first)
    return {"one": np.full(N, size - 1), "reversed": np.sort(spread)[::-1],
            "shuffled": np.random.default_rng(4).permutation(spread)}.get(how, spread).astype(np.int64)


def verbs(lab, ids) -> dict:
    """Call every verb of Rows on the rows of the participants `ids`."""
    ids = np.array(ids)
    lab.train(0, Participants(ids, weights(ids), 0, 0))
    v, w, group = lab.rows().v, weights(ids), GROUP[ids]
    old = torch.full((K, D), 7.)
    return {
        "sum": v.sum(), "sum weighted": v.sum(w), "mean": v.mean(), "mean weighted": v.mean(torch.from_numpy(w)),
        "mean block": v[5:21].mean(w), "mean block of block": v[5:21][3:].mean(w),
        "mean_by": v.mean_by(group, K, old), "mean_by weighted": v.mean_by(group, K, old, w),
        "mean_by block": v[30:].mean_by(torch.from_numpy(group), K, old[:, 30:], w),
        "gram beside": v.gram(beside=v.gather()[:2] + 1),
        "combine": v.combine(np.stack([w, w ** 2])), "gram": v.gram(), "gram block": v[5:21].gram(),
        "mix": mixed(lab, ids, v, np.outer(w, w) - .3), "mix two": mixed(lab, ids, v[5:21], pairs(len(ids))),
        **robustly(lab, "median", w, group, old), **robustly(lab, "trimmed_mean", w, group, old),
        "distances": v.distances(group, 50 * torch.eye(K, D).flip(1)), "gather": v.gather(),
        "gather block": v[5:21].gather(), "other": lab.rows().other.sum()}


def robustly(lab, how, w, group, old) -> dict:
    """Call the verbs that `server.aggregation` replaces; only rank 0 has the setting."""
    lab.pool.robust, v = RobustMean(how, .2), lab.rows().v
    found = {f"{how} mean": v.mean(w), f"{how} mean block": v[5:21].mean(),
             f"{how} mean_by": v.mean_by(group, K, old, w)}
    lab.pool.robust = None
    return found


def pairs(n):
    """Return coefficients (n, 2, n) that give the row of the next participant, and a difference."""
    return np.stack([np.roll(np.eye(n), 1, 1), np.eye(n) - np.roll(np.eye(n), 2, 1)], 1)


def mixed(lab, ids, rows, coefficients) -> torch.Tensor:
    """Send a mix to each participant, let it send that back, and gather the answers."""
    noted = rows.mix(coefficients)
    slot, what = (0, lab.rows().told) if coefficients.ndim == 2 else (1, lab.rows().twice)
    lab.pool.call(OrderPerformer.send_mixed_rows, np.int64(slot), noted.rows.ref.to_array(), ids, noted.coefficients,
                  np.array(noted.shape))
    lab.train(0, Participants(ids, weights(ids), 0, 0))
    return what.gather()


def rows(world, hostings) -> dict:
    model = federations.build_model(MLP(hidden=2), (D,), np.dtype("float32"), 2, seed=0)
    out = {}
    ways = [("exact", how) for how in hostings] + [("float32", how) for how in SINGLE if how in hostings]
    for reduce, how in ways:
        lab = federations.Lab(Echo().with_model(model), Rows(), world=world,
                              homes=hosting(how, world.size), reduce=reduce,
                              # as ranks with GPUs among ranks without
                              gpu_direct=how == "straight" and world.rank != 1)
        # The test itself addresses messages, by orders.
        lab.checked.checks = False
        if world.rank:
            lab.pool.serve()
            continue
        for name, ids in WHO.items():
            out |= {f"{reduce}/{how}/{name}/{verb}": value.numpy() for verb, value in verbs(lab, ids).items()}
        lab.pool.call(OrderPerformer.stop, np.int64(0))
    return out


def main(path: str, hostings: str, with_methods: str):
    world = open_world()
    digests = {name: compute_hosted_digest(world, federations.method(name, federations.mlp()), federations.Digits(),
                                           Loop(), "moving") for name in KINDS} if with_methods == "True" else None
    # Only a few columns of all rows are read at once.
    robust.NUMBERS_AT_ONCE = 100
    results = {**collectives(world), **lengths(world), **news(world), **rows(world, hostings.split(","))}
    # Every buffer takes several calls.
    worlds.PIECE_ELEMENTS = 16
    results |= {f"in pieces: {name}": value for name, value in collectives(world).items()}
    # Sums are the library's, as with many ranks.
    worlds.MAX_RANKS_FOR_HALVING = 1
    results |= {f"by the library: {name}": value for name, value in collectives(world).items()}
    if world.rank == 0:
        np.savez(path, **results)
        print(json.dumps(digests))
    world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
