"""What the parts of one rank share while a run goes on: requests to stop, and the client and round at work."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from fedmpi.json_values import JsonObject
from fedmpi.text import shorten_list

# clients trained at once that a message names
CLIENTS_NAMED = 3

# The function of the user's program that is called after every round with its line of metrics.jsonl; None: none is.
RoundCallback: TypeAlias = Callable[[JsonObject], object] | None


def never() -> bool:
    """Say that nobody asked this process to stop."""
    return False


def no_wait() -> float:
    """Say that nobody waits for the end of this process."""
    return 0.


@dataclass
class RankContext:
    """What the parts of one rank share. The engines keep `client` and `round` up to date; error messages and the
    heartbeat read them."""
    # whether this process was asked to stop
    stop: Callable[[], bool] = never
    # seconds since then; 0 if nobody asked
    waits: Callable[[], float] = no_wait
    # the client at work, or those that are trained at once; None between clients
    client: int | list[int] | None = None
    # how many steps clients that are trained at once have begun since the start
    steps: int = 0
    # whether the first round, or the warm-up before it, has begun: what fails before was refused, and nothing is lost
    has_begun: bool = False
    # the round that this work belongs to, from 0; -1 is the warm-up before the first round
    round: int = 0

    def name_client(self) -> str:
        """Return the client at work for a message, `client 4`, or some of those that are trained at once."""
        ids = self.client if isinstance(self.client, list) else [self.client]
        if len(ids) == 1:
            return f"client {ids[0]}"
        # No message ends with "and 1 others".
        return f"one of the clients {shorten_list(ids, CLIENTS_NAMED + (len(ids) == CLIENTS_NAMED + 1))}"
