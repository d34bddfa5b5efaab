"""The rounds of a run, at rank 0, as in the picture of one round: choose participants, let the workers train, do the
server's algebra on their rows, judge, save."""
from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from fedmpi.clients.placement import Pace
from fedmpi.clients.state_store import as_numpy, digest_of_run
from fedmpi.comm.orders import MINE, UP, Order
from fedmpi.comm.rank_pool import RankPool
from fedmpi.comm.rows import rows_of
from fedmpi.config.schema import Config, to_plain
from fedmpi.data.federation import Federation
from fedmpi.errors import FedmpiError
from fedmpi.faults import attackers
from fedmpi.method import Method, Participants, nbytes
from fedmpi.progress import Progress
from fedmpi.server import round_cost, selection
from fedmpi.server.edge_cost import EdgeLedger
from fedmpi.server.metrics import Groups, best_of, history_columns, judged, metrics_line, pictured
from fedmpi.server.on_disk_error import Storage
from fedmpi.server.sampling import addressed, participants
from fedmpi.server.step_totals import StepTotals
from fedmpi.slurm.deadline import Deadline
from fedmpi.storage import checkpoint
from fedmpi.storage.folder import RunFolder
from fedmpi.storage.run_status import evaluated
from fedmpi.text import duration, percent

CHECKPOINT_PIECE_BYTES = 64 << 20      # bytes of client rows gathered at once for a checkpoint


@dataclass
class RunState:
    """What a run knows between two rounds; with the clients' rows it is all that a checkpoint needs."""
    shared: tuple
    groups: Groups
    round: int = 0                  # rounds finished
    seconds: float = 0.             # spent in rounds, over all starts
    metrics: list[dict] = field(default_factory=list)
    steps: StepTotals = field(default_factory=StepTotals)

    def accuracy(self) -> float:
        """Return the accuracy by which this round is the best, on validation samples if they are judged; or nan."""
        last = self.metrics[-1] if self.metrics and self.metrics[-1]["round"] == self.round else {}
        return last.get(selection.BESIDE, last.get("accuracy_mean", float("nan")))


@dataclass
class Run:
    """A run at rank 0: its parts, and the loop over rounds."""
    config: Config
    method: Method
    pool: RankPool
    federation: Federation
    folder: RunFolder
    progress: Progress
    state: RunState
    up: tuple                # one client's Up, as a template of its fields
    stopping: object         # () -> bool: somebody asked the job to stop
    pace: Pace               # how fast the ranks work
    deadline: Deadline       # when this start of the run is over
    storage: Storage         # what to do when the disk refuses
    gpus: list[str] = field(default_factory=list)      # at work, see engines/gpu_card.py
    saved: float = field(default_factory=time.perf_counter)      # when the last checkpoint was begun, or the start
    saving: float = 0.       # seconds that the slowest checkpoint of this start took
    stopped: str = ""        # why the run was stopped early
    columns: dict = field(default_factory=dict)      # more of this round for the history

    @cached_property
    def honest(self) -> np.ndarray:
        """Say which clients do not attack, (N,) bool: accuracies are theirs."""
        n = len(self.federation.sizes)
        return np.isin(np.arange(n), attackers(self.config.attack, n, self.config.seed), invert=True)

    def go(self) -> bool:
        """Run all rounds. Returns False when the run was saved and stopped early because somebody asked for it."""
        state = self.state
        if state.round == 0:
            self.open()
        while not self.over:
            begin = time.perf_counter()
            self.one_round(state.round)
            self.show(time.perf_counter() - begin)
            if not self.over:
                self.stopped = self.reason(time.perf_counter() - begin)
            if self.stopped:
                self.save()      # or fail: who is asked to stop must not claim to have saved
            elif self.due():
                with self.storage.tried(state.round):
                    self.save()
            if self.stopped:
                return False
        return True

    @property
    def over(self) -> bool:
        """Say whether the run is at its end: after its last round, or early as `stop` says."""
        return self.state.round >= self.config.rounds or bool(self.early_end())

    def early_end(self) -> str:
        """Return a line that says why the run ends before its last round, "" if it does not."""
        return selection.early_end(self.config, self.state.metrics, self.state.round)

    def one_round(self, t: int) -> None:
        """One round, as in the picture; its facts enter the books, and its measures where it is evaluated."""
        begin, state, world, judge = time.perf_counter(), self.state, self.pool.world, self.evaluates(t)
        sent, received = world.sent, world.received
        asked = participants(self.config, t, self.federation.sizes)
        moved = self.move(self.config.rounds - t)
        trained = self.config.faults.arriving(asked)
        who = self.exchange(trained, judge)
        state.round = t + 1
        table, times = self.look(judge)
        facts = self.facts(asked, trained, who) | self.pace.note(times, trained) | {
            "clients_moved": moved, **self.steps(times, trained),
            "bytes_sent_by_server": world.sent - sent, "bytes_received_by_server": world.received - received}
        state.seconds += time.perf_counter() - begin
        self.enter(table, facts | {"seconds": state.seconds})

    def look(self, judge: bool):
        """Return the table of all clients (None: they are not judged now), and the ranks' times since the last look."""
        return self.pool.judge(self.state.round, self.state.shared) if judge else (None, self.pool.call(Order.TIMES))

    def steps(self, times: np.ndarray, trained: Participants) -> dict:
        """Return the gradient steps of a client, in this round and so far."""
        return self.state.steps.note(times, len(trained.ids), len(self.federation.sizes))

    def move(self, left: int) -> int:
        """Give clients another home where the ranks' work is uneven; return how many. It changes no result."""
        begin, moves = time.perf_counter(), self.pace.moves(left)
        if moves is None:
            return 0
        self.pool.call(Order.MOVE, *moves)
        self.pace.moved(self.pool.homes, len(moves[0]), time.perf_counter() - begin)
        self.progress.note(f"{len(moves[0])} clients moved to ranks that are faster or have less to do")
        return len(moves[0])

    def facts(self, asked: Participants, trained: Participants, who: Participants) -> dict:
        """Return what a round's server found, what its participants spent, and which of them did not get through."""
        state, facts = self.state, dict(who.facts)
        if "clusters" in facts:
            facts |= state.groups.update(who.ids, np.asarray(facts.pop("clusters")), facts.pop("k"))
        facts |= state.groups.note(who.ids, who.each)
        missing, text = self.config.faults.missing(asked, trained, who)
        if text:
            self.progress.note(text)
        down, up = self.method.traffic(state.shared, self.up)
        moved = down + up * np.isin(asked.ids, trained.ids)      # what is lost was not sent
        return facts | missing | self.spent(asked, moved) | {
            "participants": len(asked.ids), "mib_per_client_round": float(moved.mean()) / round_cost.MIB}

    @cached_property
    def edge(self) -> EdgeLedger:
        return EdgeLedger(self.config.edge, self.method, self.federation, self.pool.hosted.local(0),
                          self.config.rounds)

    def spent(self, who: Participants, nbytes) -> dict:
        """Return the mean time and energy of a participant's round at the edge, where `edge` is set."""
        spent = self.edge.spent(who, nbytes)
        self.columns |= {name: self.column(who.ids, values) for name, values in spent.items()}
        return {name: float(values.mean()) for name, values in spent.items()}

    def column(self, ids, values) -> np.ndarray:
        """Return values of some clients as those of all, (N, ...), nan for the others."""
        out = np.full((len(self.federation.sizes), *values.shape[1:]), np.nan, values.dtype)
        out[ids] = values
        return out

    def picture(self) -> None:
        """Note the clients' embeddings for the history."""
        rows = self.method.embedding(rows_of(self.pool, MINE, self.pool.hosted.store.first),
                                     rows_of(self.pool, UP, self.up))
        if rows is None or not len(rows.ids):
            self.progress.note(f"round {self.state.round}: {self.method.title} has no heads to embed")
        else:
            self.columns["embedding"] = self.column(rows.ids, pictured(rows.gram()))

    def exchange(self, who: Participants, judge: bool) -> Participants:
        """The server addresses the participants and takes what they send. Return whose updates it took; if none, its
        state stays."""
        state = self.state
        address(self.pool, self.method, state.shared, addressed(self.config, self.federation.sizes, who, judge))
        there = self.pool.train(who.round, who.ids, judge, state.shared, self.pace.ranks(who))
        who = who if there.all() else who.only(there)
        if len(who.ids):
            new = self.method.server(state.shared, rows_of(self.pool, UP, self.up), who)
            state.shared = type(new)(*(v.contiguous() for v in new))      # as at all ranks: sums follow strides
        return who

    def open(self) -> None:
        """The round before the first one, of a method that has it. It is done again where nothing was saved since."""
        if (ids := self.method.warm_up_participants(len(self.federation.sizes), self.config.seed)) is not None:
            who = self.exchange(Participants(ids, self.federation.sizes[ids], -1, self.config.seed), judge=False)
            if not len(who.ids):
                raise FedmpiError(f"no update of clients {ids.tolist()}, which train before round 1, can be used, and "
                                  f"{self.method.title} cannot begin; lower train.lr, or look at their data")
            found = "clusters" in who.facts      # they enter the books as round 0
            table, times = self.look(found and bool(self.config.evaluate.every))
            steps = self.steps(times, who)
            if found:
                self.enter(table, self.facts(who, who, who) | steps | {"seconds": self.state.seconds})

    def evaluates(self, t: int) -> bool:
        every = self.config.evaluate.every
        return (t + 1 == self.config.rounds or bool(every and (t + 1) % every == 0)
                or t + 1 in self.config.evaluate.embeddings)

    def reason(self, seconds: float) -> str:
        """Say why the run has to stop after a round that took so long, "" when it goes on."""
        late = self.deadline.reason_to_stop(seconds, self.saving)
        return "asked to stop" if self.stopping() or self.pool.stop_requested else late

    def due(self) -> bool:
        """Say whether to save: as set, at the end, and once early where there is a deadline, to know what it takes."""
        every, minutes, done = self.config.checkpoint.every, self.config.checkpoint.minutes, self.state.round
        return bool(every and done % every == 0 or self.over
                    or minutes and time.perf_counter() - self.saved > 60 * minutes
                    or self.deadline.known and not self.saving)

    def enter(self, table: np.ndarray | None, facts: dict) -> None:
        """Enter a round in the books: its facts and, where clients were judged, how every one was."""
        state, rows = self.state, {} if table is None else judged(table)
        state.metrics.append({"round": state.round, **metrics_line(rows, self.honest), **facts})
        with self.storage.tried(state.round):
            self.folder.append_metrics(state.metrics)
        if state.round in self.config.evaluate.embeddings:
            self.picture()
        if rows:
            self.folder.append_history(state.round, history_columns(rows) | {
                "cluster": state.groups.last.astype(float), **state.groups.each} | self.columns)
        self.columns = {}

    def show(self, seconds: float) -> None:
        state, total = self.state, self.config.rounds
        text = f"round {state.round:{len(str(total))}d}/{total}"
        if lines := evaluated(state.metrics):
            last, chosen = lines[-1], selection.best_validation_line(lines)
            best, how = (best_of(lines), "best") if chosen is None else (chosen, "at best validation")
            text += (f"  accuracy {percent(last['accuracy_mean'])} (worst tenth "
                     f"{percent(last['accuracy_worst_decile'])}, {how} {percent(best['accuracy_mean'])} in round "
                     f"{best['round']})")
        left = seconds * (total - state.round)
        self.progress.round(f"{text}  {seconds:.2f} s a round, {duration(left)} left")

    def save(self) -> None:
        """Write a checkpoint: the server's state, and the clients' rows streamed from their homes."""
        begin, state = time.perf_counter(), self.state
        self.saved = begin
        ids = np.flatnonzero(self.pool.call(Order.TOUCHED)).astype(np.int64)
        shared = {name: as_numpy(value) for name, value in state.shared._asdict().items()}
        books = {"seconds": state.seconds, "clusters": state.groups.last.tolist(), "gpus": self.gpus,
                 "steps": state.steps.saved(), "each": {n: v.tolist() for n, v in state.groups.each.items()}}
        snapshot = checkpoint.Snapshot(
            state.round, shared, ids, to_plain(self.config), self.federation.fingerprint, state.accuracy(),
            state.metrics, books | self.pool.hosted.describe_engine())
        self.folder.save_history()
        path = checkpoint.write_checkpoint(self.folder.checkpoints, snapshot, self.pieces(ids))
        checkpoint.prune(self.folder.checkpoints, self.config.checkpoint.keep)
        self.saving = max(self.saving, time.perf_counter() - begin)
        self.progress.note(f"saved {path}")

    def pieces(self, ids: np.ndarray):
        """Yield the rows of clients `ids`, a bounded number of bytes at a time."""
        per_client = max(1, nbytes(self.pool.hosted.store.first))
        at_once = max(1, CHECKPOINT_PIECE_BYTES // per_client)
        for start in range(0, len(ids), at_once):
            yield self.pool.call(Order.STATE, ids[start:start + at_once])

    def restore(self, path, snapshot: checkpoint.Snapshot) -> None:
        """Continue from a checkpoint; every rank reads its own clients' rows."""
        state = self.state
        state.shared = type(state.shared)(*(torch.from_numpy(snapshot.shared[name]) for name in state.shared._fields))
        state.round, state.metrics = snapshot.round, snapshot.metrics
        state.seconds, state.steps = snapshot.books["seconds"], StepTotals.of(snapshot.books.get("steps"))
        state.groups.last = np.array(snapshot.books["clusters"], np.int64)
        state.groups.each = {name: np.array(v, float) for name, v in snapshot.books.get("each", {}).items()}
        self.pool.call(Order.RESTORE, np.frombuffer(str(path).encode(), np.uint8), snapshot.ids)

    def result(self) -> dict:
        """Summarise the finished run, with the digest of its final state."""
        lines = evaluated(self.state.metrics)
        digest = digest_of_run(self.state.shared, self.pool.call(Order.DIGEST))
        return {**lines[-1], "digest": digest, "rounds": self.state.round, "method": self.method.title,
                "ended": "stop" if self.early_end() else "rounds", **selection.series(self.config, lines),
                "ranks": self.pool.world.size, **self.pool.hosted.describe_engine(),
                **({"gpus": self.gpus} if self.gpus else {}), "seconds": self.state.seconds}


def address(pool: RankPool, method: Method, shared: tuple, who: Participants) -> None:
    """Send each participant what the server addresses to it alone."""
    if method.message_template() is not None and len(who.ids):
        for slot, mixed in enumerate(method.messages(shared, rows_of(pool, MINE, pool.hosted.store.first), who)):
            pool.call(Order.MESSAGE, np.int64(slot), mixed.rows.ref.to_array(), who.ids, mixed.coefficients,
                      np.array(mixed.shape, np.int64))
