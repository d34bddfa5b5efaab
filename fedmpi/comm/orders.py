"""What rank 0 orders the ranks to do: the orders with their arguments and results, and how rows are named in them.

Every rank performs an order in the same way (order_performer.py): its part on the clients that it hosts, and then one
collective. Legend: N clients, n participants, d length of a row, k groups."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeVar

import numpy as np

# Sources of rows: what participants sent in this round, and what every client keeps.
UP, MINE = 0, 1


class Order(IntEnum):
    """Orders by number. The comments give arguments -> result at rank 0; `ref` is a RowRef as an array.

    `changed, *state` are the server's state: which fields changed, (fields,) bool, and these fields."""
    # exit code -> nothing: workers leave
    STOP = 0
    # round, ids, ranks, judge, changed, *state -> 1 for bad updates, (n,), or nothing if bad updates end the run
    TRAIN = 1
    # ref, weights (n,) -> weighted sum of rows (d,)
    SUM = 2
    # ref, weights (n,), groups (n,), k -> (k, d)
    SUM_BY = 3
    # ref -> rows (n, d)
    GATHER = 4
    # round, changed, *state -> measures of all clients (N, 3 or 4, 1 + measures), and what TIMES gives
    JUDGE = 5
    # -> sha256 of each client's state (N, 32)
    DIGEST = 6
    # -> which clients have a state of their own (N,)
    TOUCHED = 7
    # ids -> rows of every Mine field, by its name
    STATE = 8
    # path as bytes, ids -> nothing: ranks read their clients' rows from the file
    RESTORE = 9
    # -> seconds per phase and gradient steps since the last time (ranks, ...)
    TIMES = 10
    # name as bytes -> nothing: all ranks train with this engine from now on
    ENGINE = 11
    # changed, *state -> seconds of both engines on a few clients (ranks, 2)
    PROBE = 12
    # slot, ref, ids, coefficients, shape -> nothing: each client of ids receives its mix of rows
    MESSAGE = 13
    # ids, ranks -> nothing: these clients live at these ranks from now on
    MOVE = 14
    # bad (n,) bool -> nothing: the updates of these participants are left out
    DISMISS = 15
    # ref, groups (n,), cuts (k,) -> trimmed mean of each group (k, d), see robust.py
    MIDDLE_BY = 16
    # -> seconds of both ways to compute convolutions (ranks, 2, layers)
    PROBE_LAYERS = 17
    # unfolded (layers,) bool -> nothing: all ranks compute these convolutions as products of patches from now on
    LAYERS = 18
    # ref, groups (n,), centres (k, d) -> distance of each row from its group's centre (n,)
    DISTANCES = 19
    # slot, ids, bytes of a row -> nothing: each client of ids receives its row of what RankPool.deliver was given
    DELIVER = 20
    # ids, portions (n, 2) -> nothing: in the next TRAIN these clients make `made` of every `whole` of their steps
    PORTIONS = 21
    # round, ids, changed, *state -> mean loss on training samples of each client of ids (n,)
    LOSSES = 22


@dataclass(frozen=True)
class RowRef:
    """Names rows: columns [start, stop) of one field of a source."""
    # UP or MINE
    source: int
    # index of the field in the method's Up or Mine
    field: int
    start: int
    stop: int

    @property
    def width(self) -> int:
        """Return the length of a row."""
        return self.stop - self.start

    def columns(self, start: int, stop: int) -> RowRef:
        """Return a reference to columns [start, stop) of these rows."""
        return RowRef(self.source, self.field, self.start + start, self.start + stop)

    def to_array(self) -> np.ndarray:
        """Return this reference as orders carry it, (4,) int64."""
        return np.array([self.source, self.field, self.start, self.stop], np.int64)

    @classmethod
    def from_array(cls, words: np.ndarray) -> RowRef:
        """Return the reference that `to_array` made an array of."""
        return cls(*map(int, words))


class Handler(NamedTuple):
    """What every rank does for an order."""
    # called with this rank's OrderPerformer and the order's arrays
    perform: Callable[..., object]
    # index of the first array that belongs to the server's state, which may go straight to a GPU; None: there is none
    first_state: int | None


# filled by order_performer.py
HANDLERS: dict[Order, Handler] = {}
HandlerType = TypeVar("HandlerType", bound=Callable[..., object])


def performs(order: Order, first_state: int | None = None) -> Callable[[HandlerType], HandlerType]:
    """Register a method of OrderPerformer as the handler of an order."""
    def register(method: HandlerType) -> HandlerType:
        HANDLERS[order] = Handler(method, first_state)
        return method
    return register
