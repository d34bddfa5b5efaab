"""Summaries of the clients' measures for metrics.jsonl and history.h5. Legend: n or N clients."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedmpi.clients.measures import CLIENT_MEASURES
from fedmpi.clustering.kmeans_and_linkage import embed_rows
from fedmpi.config.evaluation import MODEL_ENDINGS, NEW_CLIENTS_ENDING
from fedmpi.json_values import JsonObject
from fedmpi.task import MeasureNames, Task, find_task

# Principal components stored per client for t-SNE.
EMBEDDING_DIM = 50


# What is said of the main measure of the clients, see Task.
OF_MAIN_MEASURE = ("mean", "weighted", "std", "worst_decile", "variance", "gini")
# Endings of measures' names, in the order of the table of Evaluator.measure_clients.
ENDINGS = ("", *MODEL_ENDINGS)
# What `ClusterTracker.update` says of a round.
FACTS_OF_CLUSTERS = frozenset({"cluster_sizes", "cluster_sizes_all", "cluster_changes", "ari", "purity"})


def split_measures(table: np.ndarray) -> dict[str, np.ndarray]:
    """Split a table of Evaluator.measure_clients by the ending of the measures' names: (n, measures) each, nan if
    unknown.

    The measures are those of a client's model before local training, after it, without what `personal` trains, and
    before local training on validation samples.

    Args:
        table: (n, 3 or 4, 1 + measures), see Evaluator.measure_clients."""
    rows = np.where(table[..., :1] > 0, table[..., 1:], np.nan)
    return {ENDINGS[i]: rows[:, i] for i in range(rows.shape[1])}


def make_metrics_line(rows: dict[str, np.ndarray], honest: np.ndarray, names: MeasureNames) -> dict[str, float]:
    """Return what a line of metrics.jsonl says of the clients; {} if none was evaluated.

    Args:
        rows: measures by the ending of their names, as `split_measures` returns them.
        honest: which clients are summarised, (n,) bool; a single measure is that of the others.
        names: of the measures in the columns of `rows`."""
    line = {f"{name}{ending}": value for ending, values in rows.items() if not ending or not np.isnan(values).all()
            for name, value in summarise_clients(values[honest], names).items()}
    if rows and not honest.all():
        key = names.task.key
        line[f"{key}_attackers"] = summarise_clients(rows[""][~honest], names)[key]
    return line


def summarise_newcomers(rows: dict[str, np.ndarray], names: MeasureNames) -> dict[str, float]:
    """Return what a line of metrics.jsonl says of the new clients; {} if there are none, or none was evaluated.

    Args:
        rows: measures of the new clients by the ending of their names, as `split_measures` returns them.
        names: of the measures in the columns of `rows`."""
    if not rows or not len(rows[""]):
        return {}
    task, found, spread = names.task, summarise_clients(rows[""], names), f"{names.task.measure}_std"
    return {f"{name}{NEW_CLIENTS_ENDING}": found[key] for name, key in (
        (task.measure, task.key), (spread, spread), (task.second, f"{task.second}_mean"), ("loss", "loss"),
        *((name, f"{name}_mean") for name in names.further))}


def list_newcomer_columns(rows: dict[str, np.ndarray], names: MeasureNames) -> dict[str, np.ndarray]:
    """Return the columns of history.h5 of the new clients by name, (m,) each; {} if there are none."""
    if not rows or not len(rows[""]):
        return {}
    columns = make_history_columns({"": rows[""]}, names)
    return {f"{name}{NEW_CLIENTS_ENDING}": values for name, values in columns.items()}


def make_history_columns(rows: dict[str, np.ndarray], names: MeasureNames) -> dict[str, np.ndarray]:
    """Return the columns of history.h5 by name, (n,) each."""
    task = names.task
    with np.errstate(invalid="ignore", divide="ignore"):
        main = {f"{task.measure}{ending}": values[:, 0] / values[:, 1] for ending, values in rows.items()}
        columns = main | {task.second: rows[""][:, 3], "loss": rows[""][:, 2] / rows[""][:, 1]}
    return columns | {f"{name}{ending}": values[:, len(CLIENT_MEASURES) + i]
                      for i, name in enumerate(names.further) for ending, values in rows.items()}


def summarise_clients(rows: np.ndarray, names: MeasureNames) -> dict[str, float]:
    """Summarise the measures of clients; clients that were not evaluated or have no test samples do not count.

    A further measure has a mean over the clients for which it is defined, and the number of all others.

    Args:
        rows: CLIENT_MEASURES, or those that stand for them, and further measures, (n, measures).
        names: of the measures in these columns."""
    task, further = names
    evaluated = rows[np.nan_to_num(rows[:, 1]) > 0]
    keys = (*(f"{task.measure}_{name}" for name in OF_MAIN_MEASURE), f"{task.second}_mean", "loss")
    if not len(evaluated):
        return dict.fromkeys((*keys, *(f"{name}_mean" for name in further)), float("nan")) | {
            f"{name}_undefined": 0 for name in further}
    total, tested, loss, second, *others = evaluated.T
    main = total / tested
    values = (main.mean(), total.sum() / tested.sum(), main.std(), compute_worst_decile(main, task), main.var(),
              compute_gini(main), second.mean(), (loss / tested).mean())
    found = dict(zip(keys, map(float, values), strict=True))
    for name, column in zip(further, others, strict=True):
        defined = np.isfinite(column)
        found |= {f"{name}_mean": mean_of_known(column[defined]), f"{name}_undefined": int((~defined).sum())}
    return found


def compute_gini(values: np.ndarray) -> float:
    """Return the Gini coefficient of values that are not negative, (n,): the mean absolute difference of two of them,
    divided by twice their mean. It is 0 if all are equal, also if all are 0."""
    ordered, n = np.sort(values), len(values)
    # The i-th smallest of n values is subtracted in n - i of all pairs, and added in i - 1 of them.
    ranks = 2 * np.arange(1, n + 1) - n - 1
    return float((ranks * ordered).sum() / (n * ordered.sum())) if ordered.any() else 0.


def find_best_line(metrics: list[JsonObject]) -> JsonObject:
    """Return the line of metrics.jsonl with the best mean over the clients, the first of equals."""
    task = find_task(metrics[-1])
    return max(metrics, key=lambda m: (m[task.key] == m[task.key], task.score(m[task.key])))


def compute_worst_decile(values: np.ndarray, task: Task) -> float:
    """Return the mean of the main measure over the worst tenth of the clients (at least one); values (n,)."""
    worst, ordered = max(1, int(np.ceil(len(values) / 10))), np.sort(values)
    return float((ordered[:worst] if task.larger_is_better else ordered[-worst:]).mean())


def compute_embedding(gram: Tensor) -> np.ndarray:
    """Return the leading principal components of rows, (n, EMBEDDING_DIM) float32, with zeros if there are fewer.

    t-SNE starts from them: they keep distances between rows as well as so few numbers can.

    Args:
        gram: inner products of the rows, (n, n)."""
    points = embed_rows(gram).flip(1)[:, :EMBEDDING_DIM].numpy()
    out = np.zeros((len(points), EMBEDDING_DIM), np.float32)
    out[:, :points.shape[1]] = points
    return out


class ClusterTracker:
    """The cluster that each client was last assigned to, and the last values of measures that methods report."""

    def __init__(self, clients: int, planted: np.ndarray | None, names: Sequence[str] | None = ()):
        """Start without any cluster.

        Args:
            clients: the number of clients, N.
            planted: the planted group of each client, (N,); None if groups are not planted.
            names: names of the planted groups."""
        # -1: not assigned yet
        self.last = np.full(clients, -1, np.int64)
        self.planted, self.names = planted, names or ()
        # by the measure's name, (N,) each, nan: unknown
        self.each: dict[str, np.ndarray] = {}

    def update(self, ids: np.ndarray, labels: np.ndarray, k: int) -> JsonObject:
        """Take this round's clusters; return their sizes, how many participants changed, and agreement with groups.

        Sizes are those of the participants, and of all clients as they were last assigned. Who has no cluster yet does
        not change it. If groups are planted, the agreement is the adjusted Rand index and the purity, which is the
        share of clients that belong to the planted group most frequent in their cluster.

        Args:
            ids: the participants, (n,).
            labels: the cluster of each, (n,).
            k: the number of clusters."""
        before = self.last[ids]
        changes = int(((before >= 0) & (before != labels)).sum())
        self.last[ids] = labels
        known = self.last >= 0
        facts = {"cluster_sizes": np.bincount(labels, minlength=k).tolist(),
                 "cluster_sizes_all": np.bincount(self.last[known], minlength=k).tolist(), "cluster_changes": changes}
        if self.planted is not None and known.any():
            from sklearn.metrics import adjusted_rand_score
            from sklearn.metrics.cluster import contingency_matrix
            planted, found = self.planted[known], self.last[known]
            facts["ari"] = float(adjusted_rand_score(planted, found))
            facts["purity"] = float(contingency_matrix(planted, found).max(0).sum() / len(found))
        return facts

    def summarise(self, ids: np.ndarray, columns: Mapping[str, Sequence[float] | np.ndarray],
                  honest: np.ndarray) -> dict[str, float]:
        """Take measures that a method reports; return their means over all clients and over each named planted group.

        Attackers and clients without a measure do not count.

        Args:
            ids: the participants, (n,).
            columns: values of the participants by name, (n,) each.
            honest: which clients do not attack, (N,) bool."""
        facts = {}
        for name, values in columns.items():
            column = self.each.setdefault(name, np.full(len(self.last), np.nan))
            column[ids] = np.asarray(values, float)
            facts[f"{name}_mean"] = mean_of_known(column[honest])
            for g, group in enumerate(self.names):
                facts[f"{name}_{group}".replace("-", "_")] = mean_of_known(column[honest & (self.planted == g)])
        return facts


def mean_of_known(values: np.ndarray) -> float:
    """Return the mean of the values that are not nan; nan if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
