"""Clients that are held back by `data.new_clients`: they are never trained, and show how a method serves new clients.

They are the last clients of the federation, behind the N that take part. Legend: N clients, m new clients."""
from __future__ import annotations

import numpy as np

from fedmpi.config.schema import Config
from fedmpi.errors import BadInput
from fedmpi.method import Method
from fedmpi.models.slices import AVOID_STATISTICS


def refuse_newcomers(config: Config, method: Method) -> None:
    """Raise BadInput if the method cannot serve the new clients that `data.new_clients` holds back."""
    if not config.data.new_clients:
        return
    asked = f"data.new_clients = {config.data.new_clients}"
    if not method.serves_newcomers:
        raise BadInput(f"{asked}: {method.title} cannot serve new clients; set data.new_clients = 0, or choose "
                       "another method (`fedmpi methods NAME` says how it serves them)")
    if method.model.buffers and method.model.policy == "local":
        raise BadInput(f"{asked}: a new client has no running statistics of its own, which model.running_stats = local "
                       f"needs; set model.running_stats = average, or {AVOID_STATISTICS}")


def list_newcomers(homes: np.ndarray, new_clients: int, rank: int) -> list[int]:
    """Return the new clients that a rank evaluates, ascending: the ranks that host clients at first take them in turn.

    Args:
        homes: the rank that hosts each client at first, (N,)
        new_clients: their number m
        rank: the rank in question"""
    hosts = np.unique(homes)
    return [len(homes) + i for i in range(new_clients) if hosts[i % len(hosts)] == rank]
