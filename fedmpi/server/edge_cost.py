"""What a participant's round costs on a device at the edge, if `edge` is set: from what its method would compute."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedmpi.config.schema import Config
from fedmpi.data.federation import Federation
from fedmpi.edge import Edge
from fedmpi.engines.batch_plan import LocalTraining, count_batches, get_local_training
from fedmpi.engines.dry_run import RoundWork, count_round_work
from fedmpi.method import Method, Participants, State
from fedmpi.models.build import make_blank_samples

# Number of the stage in which the round before the first one lies.
WARM_UP_STAGE = -1


@dataclass
class EdgeLedger:
    """Time and energy of clients.

    What a round computes is worked out once for each stage of the method (a warm-up is a stage of its own) and each
    number of samples."""
    edge: Edge | None
    method: Method
    federation: Federation
    local: LocalTraining
    # rounds of the run
    rounds: int
    # in which of the method's stages the next round is
    stage: int = 0
    # by stage and number of a client's training samples
    known: dict[tuple[int, int], RoundWork] = field(default_factory=dict)
    # the same of what it takes to tell the loss by which participants are chosen
    known_losses: dict[tuple[int, int], RoundWork] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: Config, method: Method, federation: Federation) -> EdgeLedger:
        """Return the ledger of a run; without `edge` its costs are {}."""
        return cls(config.edge, method, federation, get_local_training(config, 0), config.rounds)

    def compute_cost(self, who: Participants, nbytes: np.ndarray | int, made: np.ndarray | float = 1.,
                     told_losses: bool = False) -> dict[str, np.ndarray]:
        """Return seconds and joules of each participant by name, (n,) each; {} without `edge`.

        Args:
            nbytes: bytes that each participant sends and receives.
            made: which part of its steps each makes.
            told_losses: they were chosen by their losses, which each computed before."""
        if self.edge is None:
            return {}
        works = self.list_works(who)
        trained, passed = made * np.array([work.trained for work in works]), np.array([work.passed for work in works])
        if told_losses:
            losses = [self.count_loss_work(int(n)) for n in who.sizes]
            trained, passed = trained + [work.trained for work in losses], passed + [work.passed for work in losses]
        return self.edge.compute_cost(trained, passed, nbytes)

    def list_works(self, who: Participants) -> list[RoundWork]:
        """Return what the round of each participant would compute, (n,)."""
        stage = WARM_UP_STAGE if who.round < 0 else self.stage
        return [self.count_work(stage, int(n)) for n in who.sizes]

    def count_work(self, stage: int, n: int) -> RoundWork:
        """Return what a client with n samples computes in a round."""
        if (stage, n) not in self.known:
            shared, mine = self.make_states(stage)
            sample = make_blank_samples(self.federation.shape, self.federation.dtype)
            self.known[stage, n] = count_round_work(self.method, shared, mine, sample, n, self.local)
        return self.known[stage, n]

    def count_loss_work(self, n: int) -> RoundWork:
        """Return what it takes a client with n samples to tell its loss in the present stage: what leads to the weights
        that it is evaluated with (before they are adapted), such as a mix that it learns, and a pass with them."""
        if (self.stage, n) not in self.known_losses:
            shared, mine = self.make_states(self.stage)
            work = RoundWork(0, 0)
            if self.method.unadapted(shared, mine) is None:
                sample = make_blank_samples(self.federation.shape, self.federation.dtype)
                work = count_round_work(self.method, shared, mine, sample, n, self.local, self.method.personal)
            self.known_losses[self.stage, n] = work._replace(
                passed=work.passed + n, batches=work.batches + count_batches(n, self.local.batch, False))
        return self.known_losses[self.stage, n]

    def make_states(self, stage: int) -> tuple[State, State]:
        """Return a Shared of a stage, and the first Mine. They may be large, so they are not kept."""
        shared, mine = self.method.init(len(self.federation.sizes))
        return shared if stage == WARM_UP_STAGE else self.method.stages(shared, self.rounds)[stage][1], mine
