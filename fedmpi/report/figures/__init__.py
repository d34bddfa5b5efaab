"""The figures of a report: a function each, by family; each returns None where the runs have no data for it."""
from __future__ import annotations

from typing import NamedTuple

from fedmpi.report.figures import accuracy, clients, clusters, embeddings, work
from fedmpi.report.results import Results
from fedmpi.sweeps.job import slug


class Picture(NamedTuple):
    name: str         # of its files
    caption: str
    figure: object


# name, what it shows, and who draws it from (results, column)
OF_COLUMN = (
    (
        "accuracy",
        "Test accuracy, mean over clients; band: standard deviation over seeds",
        accuracy.draw_accuracy_by_round,
    ),
    (
        "clients",
        "Accuracy of the single clients at the end; box: quartiles, whiskers: 5 to 95 %, line: median, circle: mean",
        accuracy.by_client,
    ),
    ("bytes", "Test accuracy against what all clients received and sent", accuracy.by_bytes),
    ("seconds", "Test accuracy against the time spent in rounds", accuracy.by_seconds),
    (
        "agreement",
        "Agreement of the clusters with the planted groups (adjusted Rand index; 1: the same)",
        clusters.draw_agreement,
    ),
    ("iterations", "Iterations of k-means at the server", clusters.iterations),
    (
        "distance",
        "Distance of what is clustered from its cluster's mean, mean over the participants",
        clusters.draw_distance,
    ),
    ("lam", "Pull to the cluster's model (lam), mean over clients and over each planted group", clients.lam),
    (
        "phases",
        "Time of a round by phase; idle share: time of the workers in which they wait for the slowest",
        work.phases,
    ),
    ("labels", "Samples of each client and class", clients.labels),
)
# the same from (run): the first seed of each cell stands for it
OF_RUN = (
    ("clusters", "Clients in each cluster by round", clusters.sizes),
    ("assignments", "Cluster that each client was last put in, by round", clusters.assignments),
    ("tsne", "t-SNE of the clients' heads", embeddings.tsne))


def draw(results: Results):
    """Yield every Picture for which the runs have data so far."""
    for name, caption, function in OF_COLUMN:
        for column in results.columns:
            figure = function(results, column)
            if figure:
                where = f"{column}: " if len(results.columns) > 1 else ""
                yield Picture(f"{name}-{slug(column)}", where + caption, figure)
    for name, caption, function in OF_RUN:
        for run in results.runs:
            figure = function(run) if run.seed == results.seeds[0] else None
            if figure:
                yield Picture(f"{name}-{slug(run.row)}-{slug(run.column)}", f"{run.name}: {caption}", figure)
