"""Summaries of the clients' measures for metrics.jsonl and history.h5. Legend: n or N clients."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedmpi.clustering.kmeans_and_linkage import embed

# Principal components stored per client for t-SNE.
EMBEDDING_DIM = 50


# Endings of measures' names, in the order of the table of Evaluator.measure_clients.
ENDINGS = ("", "_after", "_unadapted", "_validation")


def judged(table: np.ndarray) -> dict[str, np.ndarray]:
    """Split a table of Evaluator.measure_clients by the ending of the measures' names: (n, 4) each, nan if unknown.

    The measures are those of a client's model before local training, after it, without what `personal` trains, and
    before local training on validation samples.

    Args:
        table: (n, 3 or 4, 1 + measures), see Evaluator.measure_clients."""
    rows = np.where(table[..., :1] > 0, table[..., 1:], np.nan)
    return {ENDINGS[i]: rows[:, i] for i in range(rows.shape[1])}


def metrics_line(rows: dict[str, np.ndarray], honest: np.ndarray) -> dict[str, float]:
    """Return what a line of metrics.jsonl says of the clients; {} if none was judged.

    Args:
        rows: measures by the ending of their names, as `judged` returns them.
        honest: which clients are summarised, (n,) bool; a single measure is that of the others."""
    line = {f"{name}{ending}": value for ending, values in rows.items() if not ending or not np.isnan(values).all()
            for name, value in summarise_clients(values[honest]).items()}
    if rows and not honest.all():
        line["accuracy_mean_attackers"] = summarise_clients(rows[""][~honest])["accuracy_mean"]
    return line


def history_columns(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns of history.h5 by name, (n,) each."""
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracies = {f"accuracy{ending}": values[:, 0] / values[:, 1] for ending, values in rows.items()}
        return accuracies | {"f1": rows[""][:, 3], "loss": rows[""][:, 2] / rows[""][:, 1]}


def summarise_clients(rows: np.ndarray) -> dict[str, float]:
    """Summarise the measures of clients, (n, 4); clients that were not judged or have no test samples do not count."""
    judged = rows[np.nan_to_num(rows[:, 1]) > 0]
    if not len(judged):
        return dict.fromkeys(("accuracy_mean", "accuracy_weighted", "accuracy_std", "accuracy_worst_decile",
                              "f1_mean", "loss"), float("nan"))
    correct, tested, loss, f1 = judged.T
    accuracy = correct / tested
    return {"accuracy_mean": float(accuracy.mean()), "accuracy_weighted": float(correct.sum() / tested.sum()),
            "accuracy_std": float(accuracy.std()), "accuracy_worst_decile": worst_decile(accuracy),
            "f1_mean": float(f1.mean()), "loss": float((loss / tested).mean())}


def best_of(metrics: list[dict]) -> dict:
    """Return the line of metrics.jsonl with the highest mean accuracy."""
    return max(metrics, key=lambda m: (m["accuracy_mean"] == m["accuracy_mean"], m["accuracy_mean"]))


def worst_decile(accuracy: np.ndarray) -> float:
    """Return the mean accuracy of the worst tenth of the clients (at least one)."""
    worst = max(1, int(np.ceil(len(accuracy) / 10)))
    return float(np.sort(accuracy)[:worst].mean())


def pictured(gram: Tensor) -> np.ndarray:
    """Return the leading principal components of rows, (n, EMBEDDING_DIM) float32, with zeros if there are fewer.

    t-SNE starts from them: they keep distances between rows as well as so few numbers can.

    Args:
        gram: inner products of the rows, (n, n)."""
    points = embed(gram).flip(1)[:, :EMBEDDING_DIM].numpy()
    out = np.zeros((len(points), EMBEDDING_DIM), np.float32)
    out[:, :points.shape[1]] = points
    return out


class Groups:
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

    def update(self, ids: np.ndarray, labels: np.ndarray, k: int) -> dict:
        """Take this round's clusters; return their sizes, how many participants changed, and agreement with groups.

        Sizes are those of the participants, and of all clients as they were last assigned. If groups are planted, the
        agreement is the adjusted Rand index and the purity, which is the share of clients that belong to the planted
        group most frequent in their cluster.

        Args:
            ids: the participants, (n,).
            labels: the cluster of each, (n,).
            k: the number of clusters."""
        changes = int((self.last[ids] != labels).sum())
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

    def note(self, ids: np.ndarray, columns: Mapping[str, Sequence | np.ndarray]) -> dict[str, float]:
        """Take measures that a method reports; return their means over all clients and over each named planted group.

        Clients without a measure do not count.

        Args:
            ids: the participants, (n,).
            columns: values of the participants by name, (n,) each."""
        facts = {}
        for name, values in columns.items():
            column = self.each.setdefault(name, np.full(len(self.last), np.nan))
            column[ids] = np.asarray(values, float)
            facts[f"{name}_mean"] = mean(column)
            for g, group in enumerate(self.names):
                facts[f"{name}_{group}".replace("-", "_")] = mean(column[self.planted == g])
        return facts


def mean(values: np.ndarray) -> float:
    """Return the mean of the values that are not nan; nan if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
