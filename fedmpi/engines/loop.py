"""Engine `loop`: it trains one client after another, as fast as a hand-written PyTorch loop. It is the oracle of the
other engines."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from fedmpi.engines import batch_plan
from fedmpi.engines.loop_data import LoopData
from fedmpi.method import State
from fedmpi.models.seeding import seed_all_generators

if TYPE_CHECKING:
    from fedmpi.engines.engine import ClientGroup, Engine

    def as_engine(engine: Loop) -> Engine:
        """Let mypy check that this is an engine."""
        return engine


class Loop:
    """The engine that applies a function to clients, one after another."""
    name = "loop"
    # this engine computes convolutions in one way only
    unfolded: list[str] | None = None

    def apply(self, function: Callable[..., State], clients: Iterable[int], shared: State, group: ClientGroup,
              local: batch_plan.LocalTraining) -> Iterator[tuple[int, State]]:
        """Yield (client, function(shared, mine, data)) for each of these clients of a group.

        Args:
            function: one of the method's, such as `client`, `idle` or `personal`.
            group: the rank's clients.hosted.HostedClients, which has the samples, the states and the messages."""
        for client in clients:
            group.context.client = client
            # Networks with dropout, or with layers that they skip at random, draw from these generators. Python hashes
            # integers alike in every process.
            seed_all_generators(hash((local.seed, local.round, client)) % 2**63)
            x, y = group.get_training_samples(client)
            own = local._replace(portion=group.portions.get(client))
            data = LoopData(x, y, client, own, message=group.messages.get(client), counter=group.counter,
                            model=group.method.model, passes=group.passes, results=group.results)
            yield client, function(shared, group.store.read(client), data)
