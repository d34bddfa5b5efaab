"""Faults planted into fedmpi/clustering, each seen by the suite: (definition, old text, new text)."""
from __future__ import annotations

FAULTS: list[tuple[str, str, str]] = [
    ("fedmpi.clustering.kmeans_and_linkage:Clusters.centres", "new = old.clone()", "new = old"),
    ("fedmpi.clustering.kmeans_and_linkage:kmeans", "min(k, len(rows))", "k"),
    ("fedmpi.clustering.kmeans_and_linkage:kmeans",
     "for part in seed])",
     "for part in seed[:1]])"),
    ("fedmpi.clustering.kmeans_and_linkage:kmeans", "if part < 0 else part", "if part < -1 else part"),
    ("fedmpi.clustering.kmeans_and_linkage:kmeans", "start is not None and keep_empty and", "keep_empty and"),
    ("fedmpi.clustering.kmeans_and_linkage:cluster_models", "seed, keep_empty=keep_empty)", "seed)"),
    ("fedmpi.clustering.kmeans_and_linkage:lloyd", "weight[labels == j])", "None)"),
    ("fedmpi.clustering.kmeans_and_linkage:compute_mean_distance", "weight[labels == j])", "None)"),
    ("fedmpi.clustering.kmeans_and_linkage:split_in_two", "2 * leaving.sum() <=", "2 * leaving.sum() <"),
    ("fedmpi.clustering.kmeans_and_linkage:cluster_models", "[find_first_equal(to_centres.T)]", ""),
    ("fedmpi.clustering.kmeans_and_linkage:embed_beside",
     "products.diagonal() - squares) / 2",
     "products.diagonal() - squares)"),
    ("fedmpi.clustering.low_rank:find_principal_weights", "np.eye(n) - 1 / n", "np.eye(n)"),
    ("fedmpi.clustering.low_rank:scale_to_unit_rows", ".clamp_min(torch.finfo(rows.dtype).tiny)", ""),
    ("fedmpi.clustering.low_rank:count_multiply_adds", "n * k + n + k", "n * k + n"),
    # running statistics, equal centres, attackers
    ("fedmpi.clustering.kmeans_and_linkage:cluster_models", "rows.gram(origin, blocks=blocks)",
     "rows.gram(origin, blocks=(slice(None),))"),
    ("fedmpi.clustering.kmeans_and_linkage:cluster_models", "torch.cat([values[..., block] for block in blocks], -1)",
     "values"),
    ("fedmpi.clustering.kmeans_and_linkage:find_first_equal", "(number[:, None] == number).int().argmax(1)", "number"),
    ("fedmpi.clustering.kmeans_and_linkage:find_first_equal", ".int().argmax(1)", ".int().argmin(1)"),
    ("fedmpi.clustering.kmeans_and_linkage:kmeans", "simplefilter(\"ignore\", Con", "simplefilter(\"default\", Con")]
