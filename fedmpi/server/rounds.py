"""The rounds of a run at rank 0, as in the picture of one round: choose participants, let the workers train, do the
server's algebra on their rows, evaluate, save."""
from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedmpi.clients.checked_method import CheckedMethod, check_in_round
from fedmpi.clients.placement import Pace
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.comm.orders import MINE, UP
from fedmpi.comm.rank_pool import RankPool
from fedmpi.comm.rank_reports import RankReports
from fedmpi.comm.rows import make_rows
from fedmpi.config.schema import Config
from fedmpi.context import RoundCallback
from fedmpi.data.federation import Federation
from fedmpi.errors import CallbackError, FedmpiError
from fedmpi.method import Participants, State
from fedmpi.own_code.failures import is_ctrl_c
from fedmpi.progress import Progress
from fedmpi.server.checkpoint_writer import CheckpointWriter
from fedmpi.server.client_selection import ClientSelector, SelectedClients
from fedmpi.server.on_disk_error import DiskErrorPolicy
from fedmpi.server.round_recorder import RoundRecorder
from fedmpi.server.run_state import RunState
from fedmpi.server.sampling import choose_addressed, make_participants
from fedmpi.server.state_check import (
    name_method_in_errors,
    refuse_non_finite,
    refuse_non_finite_message,
    refuse_wrong_log,
)
from fedmpi.slurm.deadline import Deadline


@dataclass
class Run:
    """A run at rank 0: the loop over rounds."""
    config: Config
    # the functions of the method
    checked: CheckedMethod
    pool: RankPool
    federation: Federation
    progress: Progress
    state: RunState
    # returns whether somebody asked this process to stop
    stopping: Callable[[], bool]
    # how fast the ranks work
    pace: Pace
    client_selector: ClientSelector
    # when this start of the run is over
    deadline: Deadline
    # what to do if the disk refuses
    disk_errors: DiskErrorPolicy
    recorder: RoundRecorder
    checkpoints: CheckpointWriter
    # is called with the line of metrics.jsonl after every round; None: nobody asked for that
    on_round: RoundCallback = None
    # why the run was stopped early
    stopped: str = ""

    def run_rounds(self) -> bool:
        """Run all rounds. Return False if the run was saved and stopped early: somebody asked for it, or there is no
        time for another round."""
        state = self.state
        if state.round == 0:
            self.warm_up()
        while not self.is_over:
            begin = time.perf_counter()
            self.run_round(state.round)
            self.recorder.show_round(time.perf_counter() - begin)
            self.call_back()
            if not self.is_over:
                self.stopped = self.find_reason_to_stop(time.perf_counter() - begin)
            due = self.checkpoints.is_due(self.is_over, self.deadline.known)
            self.collect_checkpoint(wait=due or bool(self.stopped))
            if self.stopped:
                # This saves or fails: a run that is asked to stop must not claim to have saved.
                self.checkpoints.save()
                return False
            if due:
                # The first one is waited for if there is a deadline, to know how long it takes, and so is the last.
                timed = not self.deadline.known or self.checkpoints.slowest_s > 0
                with self.disk_errors.handled(state.round):
                    self.checkpoints.save(while_training=timed and not self.is_over)
        return True

    def call_back(self) -> None:
        """Tell the user's program of the round. Raises CallbackError if its function raises."""
        if self.on_round is None:
            return
        try:
            self.on_round(copy.deepcopy(self.state.metrics[-1]))
        # The program may end itself in the function.
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            raise CallbackError from error

    def collect_checkpoint(self, wait: bool) -> None:
        """Take note of a checkpoint that was written while the last rounds went on; its failure is that of its round.

        Args:
            wait: wait until it is complete: only one is written at a time."""
        with self.disk_errors.handled(self.checkpoints.last_round):
            self.checkpoints.collect(wait)

    @property
    def is_over(self) -> bool:
        """Return whether the run is at its end: after its last round, or by early stopping."""
        return self.state.round >= self.config.rounds or self.recorder.is_early_stop_due

    def run_round(self, t: int) -> None:
        """Run round t, as in the picture; its facts are recorded, and its measures if it is evaluated."""
        begin, state, world, evaluates = time.perf_counter(), self.state, self.pool.world, self.config.evaluates(t)
        sent, received = world.sent, world.received
        # Before the server's code, which may modify its state in place.
        traffic = self.checked.traffic(state.shared)
        selected = self.select_clients(t, traffic)
        moved = self.move_clients(self.config.rounds - t)
        trained = self.config.faults.drop_participants(selected.in_time)
        accepted = self.exchange(trained, evaluates)
        state.round = t + 1
        table, reports = self.measure(evaluates)
        facts = self.recorder.record_participation(selected, trained, accepted, traffic)
        facts |= self.pace.record(reports.train_seconds, reports.evaluation_seconds, trained)
        facts |= self.recorder.advance_clock(selected) | {"clients_moved": moved}
        facts |= self.recorder.add_steps(reports.steps, trained)
        facts |= {"bytes_sent_by_server": world.sent - sent, "bytes_received_by_server": world.received - received}
        facts |= describe_memory(reports.peak_memory)
        state.seconds += time.perf_counter() - begin
        self.recorder.record_round(table, facts | {"seconds": state.seconds})

    def select_clients(self, t: int, traffic: tuple[int, int]) -> SelectedClients:
        """Select the participants of round t, and tell the ranks who of them makes only a part of its steps in time.

        Args:
            traffic: bytes that a participant receives and sends."""
        state = self.state
        selected = self.client_selector.select(
            t, state.simulated_seconds, traffic, self.checked.stage_of(state.shared, self.config.rounds),
            lambda ids: self.pool.measure_losses(t, ids, state.shared))
        ids, portions = selected.portions
        if len(ids):
            self.pool.call(OrderPerformer.set_portions, ids, portions)
        return selected

    def exchange(self, who: Participants, evaluates: bool) -> Participants:
        """Let the server address the participants and take what they send. Return whose updates it took.

        If it took none, its state stays.

        Args:
            who: the participants that are in time and not lost.
            evaluates: measure them right after their training."""
        state = self.state
        addressed = choose_addressed(self.config, self.checked, self.federation.sizes, who, evaluates)
        send_messages(self.pool, self.checked, state.shared, addressed)
        with check_in_round():
            refuse_wrong_log(self.checked.method, addressed, self.config.measure_names)
        who.copy_log_per_client(addressed)
        there = self.pool.train(who.round, who.ids, evaluates, state.shared, self.pace.choose_ranks(who))
        who = who if there.all() else who.only(there)
        if len(who.ids):
            with name_method_in_errors(self.checked.method, "server", who.round + 1):
                new = self.checked.server(state.shared, make_rows(self.pool, UP, self.checked.up), who)
            with check_in_round():
                refuse_wrong_log(self.checked.method, who, self.config.measure_names)
            # Contiguous as at all ranks, since the order of sums follows strides.
            state.shared = type(new)(*(v.contiguous() for v in new))
            refuse_non_finite(self.checked.method, state.shared, who.round + 1)
        return who

    def measure(self, evaluates: bool) -> tuple[np.ndarray | None, RankReports]:
        """Return the measures of all clients (None unless `evaluates`), and the ranks' reports since the last call."""
        if evaluates:
            return self.pool.evaluate(self.state.round, self.state.shared)
        return None, self.pool.call(OrderPerformer.gather_reports)

    def move_clients(self, left: int) -> int:
        """Move clients to other ranks if the ranks' work is uneven; return how many. It changes no result.

        Args:
            left: rounds that are left."""
        begin, moves = time.perf_counter(), self.pace.plan_moves(left)
        if moves is None:
            return 0
        self.pool.call(OrderPerformer.move, *moves)
        self.pace.record_moves(self.pool.homes, len(moves[0]), time.perf_counter() - begin)
        self.progress.note(f"{len(moves[0])} clients moved to ranks that are faster or have less to do")
        return len(moves[0])

    def warm_up(self) -> None:
        """Run the round before the first one, if the method has one; its time counts. It is repeated if nothing was
        saved since.

        Raises:
            FedmpiError: if no update can be used."""
        begin = time.perf_counter()
        if (ids := self.checked.method.warm_up_participants(len(self.federation.sizes), self.config.seed)) is not None:
            asked = make_participants(self.config, -1, self.federation.sizes, ids)
            traffic = self.checked.traffic(self.state.shared)
            self.state.simulated_seconds = self.client_selector.time_warm_up(asked, traffic)
            accepted = self.exchange(asked, evaluates=False)
            if not len(accepted.ids):
                raise FedmpiError(f"no update of clients {ids.tolist()}, which train before round 1, can be used, and "
                                  f"{self.checked.method.title} cannot begin; lower train.lr, or look at their data")
            # Clusters that it finds are recorded as round 0.
            found = "clusters" in accepted.facts
            table, reports = self.measure(found and bool(self.config.evaluate.every))
            steps = self.recorder.add_steps(reports.steps, asked)
            self.state.seconds += time.perf_counter() - begin
            if found:
                everybody = SelectedClients(asked, None, 0., {})
                facts = self.recorder.record_participation(everybody, asked, accepted, traffic)
                self.recorder.record_round(table, facts | steps | {"seconds": self.state.seconds})
            elif text := self.config.faults.describe_lost_clients(asked, asked, accepted)[1]:
                self.progress.note(text)

    def find_reason_to_stop(self, seconds: float) -> str:
        """Return why the run has to stop after a round that took so many seconds, "" if it goes on."""
        late = self.deadline.find_reason_to_stop(seconds, self.checkpoints.slowest_s)
        return "asked to stop" if self.stopping() or self.pool.stop_requested else late


def describe_memory(peaks: np.ndarray) -> dict[str, float]:
    """Return a round's facts about memory in MiB, from what each rank held at most so far, (ranks, 2)."""
    host, gpu = peaks.max(0).round(1).tolist()
    return {"memory_mib": host, "memory_mib_server": float(peaks[0, 0].round(1)),
            **({"gpu_memory_mib": gpu} if gpu else {})}


def send_messages(pool: RankPool, checked: CheckedMethod, shared: State, who: Participants) -> None:
    """Send each client of `who` what the server addresses to it alone."""
    method = checked.method
    if checked.message_template is not None and len(who.ids):
        with name_method_in_errors(method, "messages", who.round + 1):
            fields = checked.messages(shared, make_rows(pool, MINE, pool.hosted.store.first), who)
        for slot, content in enumerate(fields):
            if isinstance(content, Tensor):
                refuse_non_finite_message(method, checked.message_template._fields[slot], content, who)
                pool.deliver(slot, who.ids, content)
            else:
                pool.call(OrderPerformer.send_mixed_rows, np.int64(slot), content.rows.ref.to_array(), who.ids,
                          content.coefficients, np.array(content.shape, np.int64))
