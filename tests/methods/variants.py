"""Laboratories and engines of the contract that every method fulfils, see test_contract.py."""
from __future__ import annotations

import numpy as np

from fedmpi.engines.loop import Loop, LoopData
from fedmpi.method import Participants
from tests.federations import Lab, Renumbered


class Observed(Lab):
    """Keeps what there was in the beginning, `began`, and after every round, the first of which is number 0: `states`
    and the shapes of Shared."""

    def __init__(self, *args, **sections):
        super().__init__(*args, **sections)
        self.began, self.states, self.shapes = self.copy_of_state(), [], [self.shapes_of_shared()]

    def round(self, t, *args, **how):
        who = super().round(t, *args, **how)
        self.shapes.append(self.shapes_of_shared())
        if t >= 0:
            self.states.append(self.copy_of_state())
        return who

    def copy_of_state(self):
        return {k: v.clone() for k, v in self.state().items()}

    def shapes_of_shared(self):
        return {k: (v.shape, v.dtype) for k, v in self.shared._asdict().items()}


class Translated(Loop):
    """Draws the batches of the original client numbers."""

    def __init__(self, order):
        self.order = order

    def apply(self, function, clients, shared, group, local):
        for client in clients:
            data = LoopData(*group.training(client), int(self.order[client]), local, message=group.messages.get(client),
                            number=client)
            yield client, function(shared, group.store.read(client), data)


ORDER = np.array([3, 0, 7, 5, 1, 6, 2, 4])      # client i is the original's ORDER[i]
PLACE = np.argsort(ORDER)                        # the original's client c is PLACE[c]


def renumber(lab, name, federation, original, rounds):
    """Repeat a run with renumbered clients, each with its own data, batches and turns."""
    run = lab(name, Renumbered(federation, ORDER), engine=Translated(ORDER))
    first = original.method.warm_up_participants(len(ORDER), original.config.seed)
    turns = [] if first is None else [(-1, first)]
    for t, ids in turns + [(t, original.who(t).ids) for t in range(rounds)]:
        ids = np.sort(PLACE[ids])
        run.round(t, Participants(ids, run.federation.sizes[ids], t, original.config.seed))
    return run


class Spoiling(Loop):
    """What client 5 keeps or sends is not finite."""

    def apply(self, function, clients, shared, group, local):
        for client, result in super().apply(function, clients, shared, group, local):
            if client == 5 and function.__name__ == "client":
                result = [type(state)(*(v / 0 if v.is_floating_point() else v for v in state)) for state in result]
            yield client, result
