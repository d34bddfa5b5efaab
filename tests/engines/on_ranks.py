"""Train with all settings of local training at once on several ranks, which are forked or started by mpiexec as
`python -m tests.engines.on_ranks`. Rank 0 prints the digests of both engines as JSON."""
from __future__ import annotations

import json

import numpy as np

from fedmpi.clients.placement import assign_homes
from fedmpi.comm.mpi_world import open_world
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.config.schema import Train
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.models.build import build_model
from fedmpi.models.nets import MLP
from tests.federations import Digits, Lab, cnn, method

TRAIN = Train(lr=.003, schedule="cosine", warm_up=1, optimizer="adamw", weight_decay=.1, clip_norm=1.,
              label_smoothing=.1, augment=("crop", "flip"), padding=2)


def digest(world, engine) -> str | None:
    """Return the digest of two rounds of FedPer at rank 0. The vectorised engine trains a network without convolutions,
    because those of several clients at once may differ in their last bits."""
    federation = Digits(image=True)
    homes = assign_homes(federation.sizes, world.size, False, "balanced", seed=1)
    model = cnn() if engine.name == "loop" else build_model(MLP(hidden=8), (8, 8, 1), np.dtype("uint8"), 10, seed=5)
    lab = Lab(method("fedper", model), federation, engine, TRAIN, share=.6, world=world, homes=homes)
    if world.rank:
        return lab.pool.serve()
    found = lab.go(2).digest()
    lab.pool.call(OrderPerformer.stop, np.int64(0))
    return found


def main(words):
    world = open_world()
    found = {engine.name: digest(world, engine) for engine in (Loop(), Vmap())}
    if world.rank == 0:
        print(json.dumps(found))
    world.close()


if __name__ == "__main__":
    main([])
