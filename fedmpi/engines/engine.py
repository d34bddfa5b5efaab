"""What engines have in common, and what they ask of the clients that they train."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedmpi.config.schema import Config
    from fedmpi.context import RankContext
    from fedmpi.engines.batch_plan import LocalTraining, Portion
    from fedmpi.engines.gpu_card import MemoryLimits
    from fedmpi.engines.pass_memory import PassMemory
    from fedmpi.engines.result_memory import ResultMemory
    from fedmpi.engines.step_counter import StepCounter
    from fedmpi.method import Method, State


class StateReader(Protocol):
    """The private states of clients: see clients/state_store.py."""

    def read(self, client: int) -> State:
        """Return a client's Mine."""


class ClientGroup(Protocol):
    """The clients of one rank, as engines see them: see clients/hosted.py."""
    method: Method
    config: Config
    context: RankContext
    counter: StepCounter
    device: torch.device
    # bytes that this rank may use
    limits: MemoryLimits
    # numbers of the clients, ascending
    clients: list[int]
    # what the server addressed to clients for this round
    messages: dict[int, State]
    # the part of its steps that a client makes in this round; all, if it is not here
    portions: dict[int, Portion]
    # passes of all samples of a client, which were made to evaluate it
    passes: PassMemory
    # results of `ClientData.once` for it, which were computed to evaluate it
    results: ResultMemory

    @property
    def store(self) -> StateReader:
        """Return what holds the states of the clients."""

    def get_training_samples(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's training samples x (n, ...) and labels y (n,)."""

    def plan_training(self, round: int) -> LocalTraining:
        """Return the settings of local training in a round."""

    def check_grace(self) -> None:
        """Give the round up if somebody waits too long for its end. Raises GivenUp."""


def note_step(group: ClientGroup) -> None:
    """Count a step of clients that are trained at once, which the heartbeat takes for progress, and give the round up
    if somebody waits too long for its end. Raises GivenUp."""
    group.context.steps += 1
    group.check_grace()


class Engine(Protocol):
    """What trains clients: engines.loop.Loop or engines.vmap.Vmap."""
    # names of the convolutions that are computed as products of patches; None if that was not chosen
    unfolded: list[str] | None

    @property
    def name(self) -> str:
        """Return the name that the setting `engine` has for it."""

    def apply(self, function: Callable[..., State], clients: list[int], shared: State, group: ClientGroup,
              local: LocalTraining) -> Iterator[tuple[int, State]]:
        """Yield (client, function(shared, mine, data)) for each of these clients of a group, in any order.

        Args:
            function: one of the method's, such as `client`, `idle` or `personal`."""
