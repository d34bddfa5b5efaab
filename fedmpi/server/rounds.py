"""The rounds of a run at rank 0, as in the picture of one round: choose participants, let the workers train, do the
server's algebra on their rows, judge, save."""
from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedmpi.clients.placement import Pace
from fedmpi.comm.orders import MINE, UP, Order
from fedmpi.comm.rank_pool import RankPool
from fedmpi.comm.rows import rows_of
from fedmpi.config.schema import Config
from fedmpi.data.federation import Federation
from fedmpi.errors import FedmpiError
from fedmpi.method import Method, Participants
from fedmpi.progress import Progress
from fedmpi.server.books import Books
from fedmpi.server.on_disk_error import Storage
from fedmpi.server.run_state import RunState
from fedmpi.server.sampling import addressed, participants
from fedmpi.server.saving import CheckpointWriter
from fedmpi.slurm.deadline import Deadline


@dataclass
class Run:
    """A run at rank 0: the loop over rounds."""
    config: Config
    method: Method
    pool: RankPool
    federation: Federation
    progress: Progress
    state: RunState
    # one client's Up, as a template of its fields
    up: tuple
    # returns whether somebody asked this process to stop
    stopping: Callable[[], bool]
    # how fast the ranks work
    pace: Pace
    # when this start of the run is over
    deadline: Deadline
    # what to do if the disk refuses
    storage: Storage
    books: Books
    checkpoints: CheckpointWriter
    # why the run was stopped early
    stopped: str = ""

    def go(self) -> bool:
        """Run all rounds. Return False if the run was saved and stopped early because somebody asked for it."""
        state = self.state
        if state.round == 0:
            self.warm_up()
        while not self.over:
            begin = time.perf_counter()
            self.one_round(state.round)
            self.books.show_round(time.perf_counter() - begin)
            if not self.over:
                self.stopped = self.reason_to_stop(time.perf_counter() - begin)
            if self.stopped:
                # This saves or fails: a run that is asked to stop must not claim to have saved.
                self.checkpoints.save()
                return False
            if self.checkpoints.is_due(self.over, self.deadline.known):
                with self.storage.tried(state.round):
                    self.checkpoints.save()
        return True

    @property
    def over(self) -> bool:
        """Return whether the run is at its end: after its last round, or early as `stop` says."""
        return self.state.round >= self.config.rounds or bool(self.books.early_end())

    def one_round(self, t: int) -> None:
        """Run round t, as in the picture; its facts enter the books, and its measures if it is evaluated."""
        begin, state, world, judge = time.perf_counter(), self.state, self.pool.world, self.evaluates(t)
        sent, received = world.sent, world.received
        asked = participants(self.config, t, self.federation.sizes)
        moved = self.move_clients(self.config.rounds - t)
        trained = self.config.faults.arriving(asked)
        who = self.exchange(trained, judge)
        state.round = t + 1
        table, times = self.measure(judge)
        facts = self.books.describe_round(asked, trained, who) | self.pace.note(times, trained) | {
            "clients_moved": moved, **self.books.count_steps(times, trained),
            "bytes_sent_by_server": world.sent - sent, "bytes_received_by_server": world.received - received}
        state.seconds += time.perf_counter() - begin
        self.books.enter(table, facts | {"seconds": state.seconds})

    def exchange(self, who: Participants, judge: bool) -> Participants:
        """Let the server address the participants and take what they send. Return whose updates it took.

        If it took none, its state stays.

        Args:
            who: the participants that are not lost.
            judge: measure them right after their training."""
        state = self.state
        address(self.pool, self.method, state.shared, addressed(self.config, self.federation.sizes, who, judge))
        there = self.pool.train(who.round, who.ids, judge, state.shared, self.pace.ranks(who))
        who = who if there.all() else who.only(there)
        if len(who.ids):
            new = self.method.server(state.shared, rows_of(self.pool, UP, self.up), who)
            # Contiguous as at all ranks, since the order of sums follows strides.
            state.shared = type(new)(*(v.contiguous() for v in new))
        return who

    def measure(self, judge: bool) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the measures of all clients (None unless `judge`), and the ranks' times since the last call."""
        return self.pool.judge(self.state.round, self.state.shared) if judge else (None, self.pool.call(Order.TIMES))

    def move_clients(self, left: int) -> int:
        """Move clients to other ranks if the ranks' work is uneven; return how many. It changes no result.

        Args:
            left: rounds that are left."""
        begin, moves = time.perf_counter(), self.pace.moves(left)
        if moves is None:
            return 0
        self.pool.call(Order.MOVE, *moves)
        self.pace.moved(self.pool.homes, len(moves[0]), time.perf_counter() - begin)
        self.progress.note(f"{len(moves[0])} clients moved to ranks that are faster or have less to do")
        return len(moves[0])

    def warm_up(self) -> None:
        """Run the round before the first one, if the method has one. It is repeated if nothing was saved since.

        Raises:
            FedmpiError: if no update can be used."""
        if (ids := self.method.warm_up_participants(len(self.federation.sizes), self.config.seed)) is not None:
            who = self.exchange(Participants(ids, self.federation.sizes[ids], -1, self.config.seed), judge=False)
            if not len(who.ids):
                raise FedmpiError(f"no update of clients {ids.tolist()}, which train before round 1, can be used, and "
                                  f"{self.method.title} cannot begin; lower train.lr, or look at their data")
            # Clusters that it finds enter the books as round 0.
            found = "clusters" in who.facts
            table, times = self.measure(found and bool(self.config.evaluate.every))
            steps = self.books.count_steps(times, who)
            if found:
                facts = self.books.describe_round(who, who, who)
                self.books.enter(table, facts | steps | {"seconds": self.state.seconds})

    def evaluates(self, t: int) -> bool:
        """Return whether clients are judged after round t."""
        every = self.config.evaluate.every
        return (t + 1 == self.config.rounds or bool(every and (t + 1) % every == 0)
                or t + 1 in self.config.evaluate.embeddings)

    def reason_to_stop(self, seconds: float) -> str:
        """Return why the run has to stop after a round that took so many seconds, "" if it goes on."""
        late = self.deadline.reason_to_stop(seconds, self.checkpoints.slowest_s)
        return "asked to stop" if self.stopping() or self.pool.stop_requested else late


def address(pool: RankPool, method: Method, shared: tuple, who: Participants) -> None:
    """Send each participant what the server addresses to it alone."""
    if method.message_template() is not None and len(who.ids):
        for slot, mixed in enumerate(method.messages(shared, rows_of(pool, MINE, pool.hosted.store.first), who)):
            pool.call(Order.MESSAGE, np.int64(slot), mixed.rows.ref.to_array(), who.ids, mixed.coefficients,
                      np.array(mixed.shape, np.int64))
