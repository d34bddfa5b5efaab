"""What a run reports: measures of one client, and their summary over clients (METHODS: judging)."""
from __future__ import annotations

import numpy as np
from torch import Tensor

from fedmpi.clustering.kmeans_and_linkage import embed

EMBEDDING_DIM = 50      # numbers that picture a client


# Endings of measures' names, in the order of the table of Evaluator.measure_clients.
ENDINGS = ("", "_after", "_unadapted", "_validation")


def judged(table: np.ndarray) -> dict[str, np.ndarray]:
    """Split a table (n, 3 or 4, 1 + measures) of Evaluator.measure_clients into CLIENT_MEASURES (n, 4) by the ending of
    their names, nan: unknown. They are of a client's model before and after local training, without what `personal`
    trains, and before local training on validation samples."""
    rows = np.where(table[..., :1] > 0, table[..., 1:], np.nan)
    return {ENDINGS[i]: rows[:, i] for i in range(rows.shape[1])}


def metrics_line(rows: dict[str, np.ndarray], honest: np.ndarray) -> dict[str, float]:
    """Return what a line of metrics.jsonl says of the judged clients (see `judged`); {} if there are none.

    honest (n,) bool: whom the measures are of; one is of the others."""
    line = {f"{name}{ending}": value for ending, values in rows.items() if not ending or not np.isnan(values).all()
            for name, value in summarise_clients(values[honest]).items()}
    if rows and not honest.all():
        line["accuracy_mean_attackers"] = summarise_clients(rows[""][~honest])["accuracy_mean"]
    return line


def history_columns(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what history.h5 says of every judged client, (n,) each."""
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracies = {f"accuracy{ending}": values[:, 0] / values[:, 1] for ending, values in rows.items()}
        return accuracies | {"f1": rows[""][:, 3], "loss": rows[""][:, 2] / rows[""][:, 1]}


def summarise_clients(rows: np.ndarray) -> dict[str, float]:
    """Summarise CLIENT_MEASURES of all clients (n, 4); without those not judged or without test data."""
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
    """Return the leading principal components of rows, given their inner products (n, n): (n, WIDTH) float32, zeros
    where there are fewer. t-SNE starts from such: distances between rows are kept as well as so few numbers can."""
    points = embed(gram).flip(1)[:, :EMBEDDING_DIM].numpy()
    out = np.zeros((len(points), EMBEDDING_DIM), np.float32)
    out[:, :points.shape[1]] = points
    return out


class Groups:
    """Which cluster each client was last put in, and how that changes; what else was last told of it (rank 0)."""

    def __init__(self, clients: int, planted: np.ndarray | None, names=()):
        self.last = np.full(clients, -1, np.int64)
        self.planted, self.names = planted, names or ()
        self.each = {}      # measure -> (N,), nan: unknown

    def update(self, ids: np.ndarray, labels: np.ndarray, k: int) -> dict:
        """Note this round's clusters; return sizes (of participants, and of all clients as they were last assigned),
        changes and (where groups are planted) the adjusted Rand index and the purity: the share of clients that belong
        to the planted group most frequent in their cluster."""
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

    def note(self, ids: np.ndarray, columns: dict) -> dict:
        """Note measures of each participant; return their means over the clients that have one: all, and those of
        each planted group with a name."""
        facts = {}
        for name, values in columns.items():
            told = self.each.setdefault(name, np.full(len(self.last), np.nan))
            told[ids] = np.asarray(values, float)
            facts[f"{name}_mean"] = mean(told)
            for g, group in enumerate(self.names):
                facts[f"{name}_{group}".replace("-", "_")] = mean(told[self.planted == g])
        return facts


def mean(values: np.ndarray) -> float:
    """Return the mean of what is known, nan where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
