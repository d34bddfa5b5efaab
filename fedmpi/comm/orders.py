"""Orders that rank 0 gives to all ranks, and how rows are named in them.

An order is a function that every rank performs: its part on the clients that it hosts, and then mostly one collective;
some need none, or one for each client or field. All are in order_performer.py, and `RankPool.call` gives one."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# Sources of rows: what participants sent in this round, and what every client keeps.
UP, MINE = 0, 1


class Order(NamedTuple):
    """What rank 0 can order all ranks to do."""
    # what travels to the workers: the order's place in ORDERS
    number: int
    name: str
    # called on every rank with its OrderPerformer and the order's arrays
    perform: Callable[..., object]
    # index of the first array that belongs to the server's state, which may go straight to a GPU; None: there is none
    first_state: int | None


# All orders by number. Every rank runs the same code, so they have the same numbers everywhere.
ORDERS: list[Order] = []


def order(first_state: int | None = None) -> Callable[[Callable[..., object]], Order]:
    """Make an order of a method of OrderPerformer.

    Args:
        first_state: index of the order's first array that belongs to the server's state. Default: it has none."""
    def register(method: Callable[..., object]) -> Order:
        ORDERS.append(Order(len(ORDERS), method.__name__, method, first_state))
        return ORDERS[-1]
    return register


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
