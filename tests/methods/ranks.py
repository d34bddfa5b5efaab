"""Methods on several ranks, hosted in several ways: `python -m tests.methods.ranks NAME...` under mpiexec, or forked.

Rank 0 prints the digests as JSON."""
from __future__ import annotations

import json
import sys

import numpy as np

from fedmpi.clients.placement import assign_homes
from fedmpi.comm.mpi_world import open_world
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from tests.federations import Digits, Lab, method, mlp
from tests.methods.table import KINDS, SHOWN

# Clients that move, and their new ranks.
MOVED = ([0, 2, 5, 6], [1, 2, 1, 2]), ([0, 5, 7], [1, 2, 0])
HOW = {"balanced": ("balanced", False), "moving": ("shuffled", False), "the server too": ("blocks", True)}
# For each engine the ways of hosting for the methods in KINDS, and for all others, whose clients move as well.
WAYS = (Loop(), ("balanced", "moving")), (Vmap(), ("moving", "the server too"))
FEWER_WAYS = (Loop(), ("moving",)), (Vmap(), ("the server too",))


def digest(world, name, model, federation, engine, how, server_hosts) -> str | None:
    where = assign_homes(federation.sizes, world.size, server_hosts, how, seed=1)
    lab = Lab(method(name, model, **SHOWN.get(name, {})), federation, engine, share=.6, world=world, homes=where)
    if world.rank:
        return lab.pool.serve()
    found = (moving(lab) if how == "shuffled" else lab.go()).digest()
    lab.pool.call(OrderPerformer.stop, np.int64(0))
    return found


def moving(lab):
    """Run with clients that move between rounds, some of them back."""
    lab.open()
    for t in range(3):
        lab.round(t)
        for ids, ranks in MOVED[t:t + 1]:
            lab.pool.call(OrderPerformer.move, np.array(ids), np.array(ranks))
    return lab


def digests(world, names, brief=False) -> dict:
    """Return method -> engine -> way of hosting -> digest, at rank 0; if `brief`, for one engine and one way."""
    model, federation = mlp(), Digits()
    found = {}
    for name in names:
        ways = FEWER_WAYS[:1] if brief else WAYS if name in KINDS else FEWER_WAYS
        found[name] = {engine.name: {how: digest(world, name, model, federation, engine, *HOW[how]) for how in hosting}
                       for engine, hosting in ways}
    return found


def main(names):
    world = open_world()
    found = digests(world, names)
    if world.rank == 0:
        print(json.dumps(found))
    world.close()


if __name__ == "__main__":
    main(sys.argv[1:])
