"""Record the rounds of a run: what each found and cost, how clients were evaluated, and what the user is told of it.

The records are written to metrics.jsonl (a line per round) and history.h5 (a row per client and evaluated round).
Legend: N clients, n participants."""
from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedmpi.clients.checked_method import CheckedMethod
from fedmpi.clients.state_store import compute_run_digest
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.comm.orders import MINE, UP
from fedmpi.comm.rank_pool import RankPool
from fedmpi.comm.rows import make_rows
from fedmpi.config.evaluation import NEW_CLIENTS_ENDING
from fedmpi.config.schema import Config
from fedmpi.data.federation import SAMPLE_PARTS, Federation
from fedmpi.faults import find_honest
from fedmpi.json_values import JsonObject
from fedmpi.method import Participants
from fedmpi.progress import Progress
from fedmpi.server import early_stopping
from fedmpi.server.client_selection import ClientSelector, SelectedClients
from fedmpi.server.edge_cost import EdgeLedger
from fedmpi.server.metrics import (
    compute_embedding,
    find_best_line,
    list_newcomer_columns,
    make_history_columns,
    make_metrics_line,
    split_measures,
    summarise_newcomers,
)
from fedmpi.server.on_disk_error import DiskErrorPolicy
from fedmpi.server.run_state import RunState
from fedmpi.storage.folder import RunFolder
from fedmpi.storage.run_status import list_evaluated
from fedmpi.task import Task
from fedmpi.text import MIB, format_duration


@dataclass
class RoundRecorder:
    """Records the rounds of a run at rank 0."""
    config: Config
    # the functions of the method
    checked: CheckedMethod
    pool: RankPool
    federation: Federation
    folder: RunFolder
    progress: Progress
    state: RunState
    disk_errors: DiskErrorPolicy
    # selects participants, and keeps their simulated time
    client_selector: ClientSelector
    # GPUs at work, see engines/gpu_card.py
    gpus: list[str] = field(default_factory=list)
    # further columns of this round for the history, (N, ...) each
    columns: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        """Return what is learned, by which the measures are named."""
        return self.config.measure_names.task

    @cached_property
    def honest(self) -> np.ndarray:
        """Return which clients do not attack, (N,) bool: accuracies are theirs."""
        return find_honest(self.config.attack, len(self.federation.sizes), self.config.seed)

    @property
    def summarised(self) -> np.ndarray:
        """Return which clients a mean is over, (N,) bool: honest ones with samples of the part that is evaluated."""
        return self.honest & (self.federation.counts[:, SAMPLE_PARTS.index(self.config.evaluate.on)] > 0)

    @cached_property
    def edge(self) -> EdgeLedger:
        """Return the time and the energy of devices at the edge."""
        return self.client_selector.ledger

    def add_steps(self, steps: np.ndarray, trained: Participants) -> JsonObject:
        """Add the gradient steps of a round to the totals; return the steps of a client, in this round and so far.

        Args:
            steps: the steps of each rank, as RankReports has them, (ranks, 3 * kinds)."""
        return self.state.steps.add_round(steps, len(trained.ids), len(self.federation.sizes))

    def record_participation(self, selected: SelectedClients, trained: Participants, accepted: Participants,
                             traffic: tuple[int, int]) -> JsonObject:
        """Update the clusters and the costs, and log who did not get through. Return what the server found in the
        round, what its participants spent, and who is missing.

        Args:
            trained: the selected clients that were in time and not lost.
            accepted: those of them whose updates the server took.
            traffic: bytes that a participant received and sent."""
        clusters, ids = self.state.clusters, selected.participants.ids
        facts: JsonObject = dict(accepted.facts)
        if "clusters" in facts:
            facts |= clusters.update(accepted.ids, np.asarray(facts.pop("clusters")), facts.pop("k"))
        facts |= clusters.summarise(accepted.ids, accepted.each, self.honest)
        missing, text = self.config.faults.describe_lost_clients(selected.in_time, trained, accepted)
        for line in filter(None, [selected.describe(), text]):
            self.progress.note(line)
        down, up = traffic
        # What is lost was not sent.
        moved = down + up * np.isin(ids, trained.ids)
        if self.checked.method.idles:
            # They receive the server's state, too.
            facts["mib_idle"] = (len(self.federation.sizes) - len(ids)) * down / MIB
        costs = self._add_edge_costs(selected, moved)
        return facts | missing | costs | {
            "participants": len(ids), "mib_per_client_round": float(moved.mean()) / MIB if len(moved) else 0.}

    def advance_clock(self, selected: SelectedClients) -> JsonObject:
        """Add the simulated time of a round to that of the run. Return both, and who was too late."""
        if self.client_selector.clock is None:
            return selected.facts
        self.state.simulated_seconds += selected.seconds
        return {**selected.facts, "simulated_seconds_round": selected.seconds,
                "simulated_seconds": self.state.simulated_seconds}

    def _add_edge_costs(self, selected: SelectedClients, nbytes: np.ndarray) -> JsonObject:
        """Add columns of what each participant's round takes at the edge. Return the means; {} without `edge`.

        Args:
            nbytes: bytes that each participant received and sent."""
        who, told_losses = selected.participants, "candidates" in selected.facts
        spent = self.edge.compute_cost(who, nbytes, selected.made, told_losses)
        self.columns |= {name: self._column(who.ids, values) for name, values in spent.items()}
        return {name: float(values.mean()) if len(values) else 0. for name, values in spent.items()}

    def _column(self, ids: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return values of some clients as a column of all, (N, ...), with nan for the others."""
        out = np.full((len(self.federation.sizes), *values.shape[1:]), np.nan, values.dtype)
        out[ids] = values
        return out

    def record_round(self, table: np.ndarray | None, facts: JsonObject) -> None:
        """Record a round: its facts, and the clients' measures if it was evaluated.

        Args:
            table: measures of all clients, the new ones last (see Evaluator.measure_clients); None: it was not
                evaluated."""
        n = len(self.federation.sizes)
        state, rows = self.state, {} if table is None else split_measures(table[:n])
        newcomers = {} if table is None else split_measures(table[n:])
        names = self.config.measure_names
        state.metrics.append({"round": state.round, **make_metrics_line(rows, self.honest, names),
                              **summarise_newcomers(newcomers, names), **facts})
        with self.disk_errors.handled(state.round):
            self.folder.append_metrics(state.metrics)
        if state.round in self.config.evaluate.embeddings:
            self._add_embeddings()
        if rows:
            measured = make_history_columns(rows, names) | list_newcomer_columns(newcomers, names)
            self.folder.append_history(state.round, measured | {
                "cluster": state.clusters.last.astype(float), **state.clusters.each} | self.columns)
        self.columns = {}

    def _add_embeddings(self) -> None:
        """Add the clients' embeddings to this round's columns."""
        rows = self.checked.embedding(make_rows(self.pool, MINE, self.pool.hosted.store.first),
                                      make_rows(self.pool, UP, self.checked.up))
        if rows is None:
            self.progress.note(f"round {self.state.round}: {self.checked.method.title} has no heads to embed")
        elif not len(rows.ids):
            self.progress.note(f"round {self.state.round}: no heads to embed: the server took no update, or the run "
                               "was continued after this round")
        else:
            self.columns["embedding"] = self._column(rows.ids, compute_embedding(rows.gram()))

    def show_round(self, seconds: float) -> None:
        """Tell the user how the round went that took so many seconds."""
        state, total = self.state, self.config.rounds
        text = f"round {state.round:{len(str(total))}d}/{total}"
        if lines := list_evaluated(state.metrics):
            last, chosen = lines[-1], early_stopping.find_best_validation_line(lines)
            best, how = (find_best_line(lines), "best") if chosen is None else (chosen, "at best validation")
            task = self.task
            when = "" if last["round"] == state.round else f" in round {last['round']}"
            text += (f"  {task.title} {task.format(last[task.key])}{when} (worst tenth "
                     f"{task.format(last[f'{task.measure}_worst_decile'])}, {how} {task.format(best[task.key])} "
                     f"in round {best['round']})")
        left = seconds * (total - state.round)
        self.progress.round(f"{text}  {seconds:.2f} s a round, {format_duration(left)} left")

    def format_newcomers(self) -> str:
        """Return how new clients were served in the last evaluated round, "" if there are none."""
        value = list_evaluated(self.state.metrics)[-1].get(f"{self.task.measure}{NEW_CLIENTS_ENDING}", "none")
        if value == "none":
            return ""
        return f"{self.task.format(value)} over {self.config.data.new_clients} new clients, "

    @property
    def is_early_stop_due(self) -> bool:
        """Return whether early stopping ends the run after this round."""
        return bool(self.explain_early_stop())

    def explain_early_stop(self) -> str:
        """Return a line that says why early stopping ends the run before its last round, "" if it does not."""
        return early_stopping.explain_early_stop(self.config, self.state.metrics, self.state.round)

    def describe_absence(self) -> str:
        """Return a line if rounds passed and the server took an update in none of them, "" otherwise."""
        rounds = sum(line["round"] > 0 for line in self.state.metrics)
        if not rounds or self.state.count_skipped_rounds() < rounds:
            return ""
        return (f"warning: nobody took part in any of the {rounds} rounds, so nothing was learned; metrics.jsonl "
                "says of each round who was available, late or lost\n")

    def result(self) -> JsonObject:
        """Return the summary of the finished run, with the digest of its final state."""
        lines = list_evaluated(self.state.metrics)
        digest = compute_run_digest(self.state.shared, self.pool.call(OrderPerformer.gather_digests))
        names = self.federation.names.get("client_names")
        return {**lines[-1], "digest": digest, "federation": self.federation.fingerprint,
                **self.client_selector.describe_files(),
                "rounds": self.state.round, "method": self.checked.method.title,
                "ended": "stop" if self.is_early_stop_due else "rounds",
                **early_stopping.list_series(self.config, lines),
                "ranks": self.pool.world.size, **self.pool.hosted.describe_engine(),
                "engine_why": self.state.engine_why,
                **({"gpus": self.gpus} if self.gpus else {}), **self.state.describe_code(),
                **({"new_clients": self.federation.new_clients} if self.config.data.new_clients else {}),
                **({"client_names": names} if names else {}),
                "seconds": self.state.seconds}
