"""What orders ask of the clients that a rank hosts, as types; fedmpi/clients/ implements them.

This package may not import that one: the ranks' orders do not know how clients are trained and measured. Legend of
shapes: n clients of an order, N clients of all ranks, d parameters, k groups, m parts of a message."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedmpi.comm.orders import RowRef
from fedmpi.context import RankContext


class HostedRows(Protocol):
    """This rank's part of sums over rows: see clients/partial_sums.py."""

    def read_rows(self, ref: RowRef, dtype: torch.dtype = torch.float32) -> np.ndarray:
        """Return the rows of hosted clients, (n, d). Raises NotFinite."""

    def measure_distances(self, ref: RowRef, groups: np.ndarray, centres: np.ndarray) -> np.ndarray:
        """Return the distance of each row from its group's centre, (n,), for `groups` (n,) and `centres` (k, d)."""

    def sum_weighted(self, ref: RowRef, weights: np.ndarray, groups: np.ndarray | None = None, k: int = 0) -> Tensor:
        """Return a weighted sum of rows, (d,), or of each of k groups' rows, (k, d). Raises NotFinite."""


class States(Protocol):
    """The states of this rank's clients: see clients/state_store.py."""

    @property
    def first(self) -> tuple[Tensor, ...]:
        """Return the first Mine, which is the same for all clients."""


class Measures(Protocol):
    """Measures of this rank's clients: see clients/evaluation.py."""

    def measure_clients(self, round: int, n: int) -> np.ndarray:
        """Return the measures of hosted clients before this round; the rows of all others of the n are 0."""

    def measure_training_losses(self, round: int, clients: Sequence[int]) -> np.ndarray:
        """Return the mean loss of hosted clients on their training samples before this round, (n,)."""


class Steps(Protocol):
    """Gradient steps of this rank's clients: see engines/step_counter.py."""

    def take(self) -> np.ndarray:
        """Return the steps since the last call, by whose they are and by kind."""


class NamedEngine(Protocol):
    """What trains clients: see engines/engine.py."""

    @property
    def name(self) -> str:
        """Return the name that the setting `engine` has for it."""


class Hosted(Protocol):
    """What orders ask of the clients that a rank hosts: see clients/hosted.py."""
    context: RankContext
    device: torch.device
    skips_bad_updates: bool

    @property
    def engine(self) -> NamedEngine:
        """Return what trains hosted clients."""

    @property
    def sums(self) -> HostedRows:
        """Return what adds up rows of hosted clients."""

    @property
    def store(self) -> States:
        """Return what holds the states of hosted clients."""

    @property
    def evaluator(self) -> Measures:
        """Return what measures hosted clients."""

    @property
    def counter(self) -> Steps:
        """Return what counts the gradient steps of hosted clients."""

    def receive_shared(self, changed: Iterable[bool], arrays: Iterable[np.ndarray | Tensor]) -> None:
        """Take the fields of the server's state that changed, and keep the others."""

    def train(self, round: int, everybody: np.ndarray, here: Iterable[int], evaluates: bool) -> None:
        """Train the participants that are `here` in this round, and keep what they send."""

    def check_grace(self) -> None:
        """Raise GivenUp if somebody waits too long for the end of the round."""

    def find_bad_updates(self, ids: np.ndarray) -> np.ndarray:
        """Return 1 for each client that trained here and whose update is bad, else 0, (n,)."""

    def add_mixed_field(self, slot: int, client: int, totals: Tensor, scales: np.ndarray,
                        shape: tuple[int, ...]) -> None:
        """Keep a field of a client's message: the sums `totals` (m, d) times `scales` (m,), in this shape."""

    def add_server_field(self, slot: int, client: int, row: np.ndarray) -> None:
        """Keep a field of a client's message that the server made for this client alone; `row` is its bytes (b,)."""

    def set_portions(self, ids: np.ndarray, portions: np.ndarray) -> None:
        """Let clients make a part of their steps in the next round: `portions` (n, 2) of clients `ids` (n,)."""

    def compute_digests(self) -> np.ndarray:
        """Return the sha256 of each hosted client's state, (n, 32) uint8."""

    def find_touched(self) -> np.ndarray:
        """Return which hosted clients have a state of their own, (n,) bool."""

    def collect_states(self, clients: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the states of some hosted clients, (n, ...) by field."""

    def restore_states(self, path: str | Path, ids: np.ndarray) -> None:
        """Read the states of hosted clients from a checkpoint that holds those of `ids`."""

    def release_client(self, client: int) -> list[np.ndarray]:
        """Stop hosting a client. Return whether it has a state of its own, and the fields of its state."""

    def host_client(self, client: int, touched: bool, *mine: np.ndarray) -> None:
        """Host a client from now on, with what `release_client` returned."""

    def take_seconds(self) -> tuple[float, float]:
        """Return the seconds of training and of evaluation since the last call."""

    @property
    def trains_on_gpu(self) -> bool:
        """Return whether this rank hosts clients that train on a GPU."""

    def use_engine(self, engine: str) -> None:
        """Train with another engine from now on."""

    def time_engines(self) -> np.ndarray:
        """Return the seconds of both engines on the same clients, (2,)."""

    def use_convolutions(self, unfolded: np.ndarray) -> None:
        """Compute the convolutions that are true in `unfolded` (layers,) as products of patches from now on."""

    def describe_engine(self) -> dict[str, object]:
        """Return how clients are trained, for result.json and checkpoints."""

    def time_convolutions(self) -> np.ndarray:
        """Return the seconds of both ways of every convolution, (2, layers)."""
