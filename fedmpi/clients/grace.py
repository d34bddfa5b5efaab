"""How long training may go on after somebody asked the run to stop."""
from __future__ import annotations

from fedmpi.errors import GivenUp


def check(waited_s: float, grace_s: float) -> None:
    """Raise GivenUp if a run was asked to stop longer ago than `checkpoint.grace` allows a round to go on."""
    if waited_s > grace_s:
        raise GivenUp(f"asked to stop more than {grace_s:g} s ago (checkpoint.grace): the round is given up")
