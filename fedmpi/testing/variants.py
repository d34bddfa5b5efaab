"""Laboratories and engines that show one promise of a method each."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from fedmpi.clients.placement import assign_homes
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.comm.transport import Transport
from fedmpi.engines.batch_plan import LocalTraining
from fedmpi.engines.engine import ClientGroup, Engine
from fedmpi.engines.loop import Loop
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.vmap import Vmap
from fedmpi.method import Method, Participants, State
from fedmpi.testing.federations import Renumbered, SmallFederation
from fedmpi.testing.lab import Lab
from fedmpi.torch_compat import flatten_tree

# Share of the clients in each round: 5 of 8.
SHARE = .6
# Client i is the original's RENUMBERING[i], and the original's client c is PLACE[c].
RENUMBERING = np.array([3, 0, 7, 5, 1, 6, 2, 4])
PLACE = np.argsort(RENUMBERING)
# Clients that move after a round, and where they live from then on.
MOVES = ([0, 2, 5, 6], [1, 2, 1, 2]), ([0, 5, 7], [1, 2, 0])
# Way of hosting -> placement, whether the server hosts clients too, and whether clients move.
HOSTING = {"balanced": ("balanced", False, False), "moving": ("shuffled", False, True),
           "the server too": ("blocks", True, False)}
# The client whose updates cannot be used.
SPOILED = 5


class ObservedLab(Lab):
    """Keeps what there was in the beginning, `began`, and after every round, the first of which is number 0: `states`
    and the shapes of Shared."""

    def __init__(self, method: Method, federation: SmallFederation, engine: Engine):
        super().__init__(method, federation, engine, share=SHARE)
        self.began = self.copy_state()
        self.states: list[dict[str, Tensor]] = []
        self.shapes = [self.list_shapes_of_shared()]

    def round(self, t: int, who: Participants | None = None, evaluates: bool = False) -> Participants:
        """Perform a round, and note what there is after it."""
        who = super().round(t, who, evaluates)
        self.shapes.append(self.list_shapes_of_shared())
        if t >= 0:
            self.states.append(self.copy_state())
        return who

    def copy_state(self) -> dict[str, Tensor]:
        """Return copies of everything that the run has learned, by name."""
        return {k: v.clone() for k, v in self.state().items()}

    def list_shapes_of_shared(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Return shape and type of the fields of Shared."""
        return {k: (v.shape, v.dtype) for k, v in self.shared._asdict().items()}


class TranslatingLoop(Loop):
    """Draws the batches of the original client numbers."""

    def __init__(self, order: np.ndarray):
        self.order = order

    def apply(self, function: Callable[..., State], clients: Iterable[int], shared: State, group: ClientGroup,
              local: LocalTraining) -> Iterator[tuple[int, State]]:
        """Yield the results of a function for these clients, see Loop.apply."""
        for client in clients:
            x, y = group.get_training_samples(client)
            data = LoopData(x, y, int(self.order[client]), local, message=group.messages.get(client), number=client,
                            model=group.method.model)
            yield client, function(shared, group.store.read(client), data)


class SpoilingLoop(Loop):
    """What client SPOILED keeps or sends is not finite."""

    def apply(self, function: Callable[..., State], clients: Iterable[int], shared: State, group: ClientGroup,
              local: LocalTraining) -> Iterator[tuple[int, State]]:
        """Yield the results of a function for these clients, see Loop.apply."""
        for client, result in super().apply(function, clients, shared, group, local):
            if client == SPOILED and function.__name__ == "client":
                result = [type(state)(*(v / 0 if v.is_floating_point() else v for v in state)) for state in result]
            yield client, result


def list_tensors(state: object) -> list[torch.Tensor]:
    """Return the tensors of a state, or of several in tuples and lists."""
    return flatten_tree(state)[0]


def split_in_chunks() -> Vmap:
    """Return an engine that takes 5 participants in two chunks."""
    engine = Vmap()
    engine.most = 3
    return engine


def renumber(method: Method, federation: SmallFederation, original: Lab, rounds: int) -> Lab:
    """Repeat a run with renumbered clients, each with its own data, batches and turns."""
    run = Lab(method, Renumbered(federation, RENUMBERING), TranslatingLoop(RENUMBERING), share=SHARE)
    first = original.method.warm_up_participants(len(RENUMBERING), original.config.seed)
    turns = [] if first is None else [(-1, first)]
    for t, ids in turns + [(t, original.who(t).ids) for t in range(rounds)]:
        run.round(t, run.choose(np.sort(PLACE[ids]), t))
    return run


def compute_hosted_digest(world: Transport, method: Method, federation: SmallFederation, engine: Engine, how: str
                          ) -> str | None:
    """Return the digest of three rounds on several ranks, at rank 0.

    Args:
        how: a way of HOSTING"""
    placement, server_hosts, moves = HOSTING[how]
    homes = assign_homes(federation.sizes, world.size, server_hosts, placement, seed=1)
    lab = Lab(method, federation, engine, share=SHARE, world=world, homes=homes)
    if world.rank:
        lab.pool.serve()
        return None
    lab.open()
    for t in range(3):
        lab.round(t)
        for ids, ranks in MOVES[t:t + 1] if moves else ():
            lab.pool.call(OrderPerformer.move, np.array(ids), np.array(ranks))
    digest = lab.digest()
    lab.pool.call(OrderPerformer.stop, np.int64(0))
    return digest


def measure_distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Return the largest difference between two states; inf if their names or shapes differ, or if a number is nan in
    one of them alone."""
    if a.keys() != b.keys() or any(a[k].shape != b[k].shape for k in a):
        return math.inf
    apart = 0.
    for x, y in ((a[k].double(), b[k].double()) for k in a if a[k].numel()):
        # max() of Python would pass over nan.
        alike = (x == y) | x.isnan() & y.isnan()
        apart = max(apart, float((x - y).abs().nan_to_num(math.inf, math.inf).masked_fill(alike, 0.).max()))
    return apart
