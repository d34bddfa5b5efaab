"""k-means at rank 0 equals scikit-learn's, is seeded and warm-started, and handles empty clusters and few rows."""
from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from fedmpi.clustering import kmeans_and_linkage as module
from fedmpi.clustering.kmeans_and_linkage import (
    Clusters,
    cluster_models,
    compute_mean_distance,
    embed_rows,
    find_first_equal,
    find_nearest,
    kmeans,
    lloyd,
    replace_entries,
    split_in_two,
)


def blobs(per=6, k=3, d=40, spread=.1):
    generator = torch.Generator().manual_seed(0)
    centres = 5 * torch.randn(k, d, generator=generator)
    return centres.repeat_interleave(per, 0) + spread * torch.randn(k * per, d, generator=generator), centres


def test_it_is_scikit_learns_from_the_same_start():
    x, _ = blobs(spread=5.)
    start = x[[0, 1, 2]]
    found = kmeans(x, 3, start, (1, 2))
    expected = KMeans(3, init=start.double().numpy(), n_init=1).fit(x.double().numpy())
    assert np.array_equal(found.labels, expected.labels_) and found.iterations == expected.n_iter_ > 1
    assert np.allclose(found.centres(x, start).numpy(), expected.cluster_centers_, atol=1e-5)


def test_distance_is_to_the_mean_of_the_own_cluster():
    x, labels, weight = torch.tensor([[0., 0.], [4., 0.], [7., 7.]]), np.array([0, 0, 2]), [3, 1, 1]
    assert compute_mean_distance(x, labels) == pytest.approx((2 + 2 + 0) / 3)
    assert compute_mean_distance(x, labels, weight) == pytest.approx((1 + 3 + 0) / 3)
    # For embedded rows it is the distance of the rows.
    x, _ = blobs(spread=5.)
    labels = np.arange(len(x)) % 3
    assert compute_mean_distance(embed_rows(x.double() @ x.double().T),
                                 labels) == pytest.approx(compute_mean_distance(x, labels))


def test_it_is_scikit_learns_from_random_starts_of_which_the_best_counts():
    x = torch.rand(60, 3, generator=torch.Generator().manual_seed(1)).double()
    state = int(np.random.SeedSequence((4, 2)).generate_state(1)[0])
    for tries in (1, 9):
        expected = KMeans(6, n_init=tries, random_state=state).fit(x.numpy())
        assert kmeans(x, 6, None, (4, 2), tries=tries).labels.tolist() == expected.labels_.tolist()
    one, best = (compute_mean_distance(x, kmeans(x, 6, None, (4, 2), tries=tries).labels) for tries in (1, 9))
    assert best < one


def test_a_warm_start_keeps_the_numbers_of_the_clusters():
    x, centres = blobs()
    for order in ([0, 1, 2], [2, 0, 1]):
        labels = kmeans(x, 3, centres[order], (0,)).labels
        assert labels.tolist() == np.repeat(np.argsort(order), 6).tolist()


def test_an_empty_cluster_keeps_its_head():
    x, centres = blobs(k=2)
    old = torch.cat([centres, torch.full((1, 40), 1e3)])
    found = Clusters(np.repeat([0, 1], 6), 1, 3)
    new = found.centres(x, old)
    assert torch.equal(new[2], old[2]) and torch.allclose(new[0], x[:6].mean(0), atol=1e-6)
    assert not torch.equal(new[:2], old[:2])


def test_centres_leave_the_old_ones_alone():
    x, centres = blobs()
    before = centres.clone()
    kmeans(x, 3, centres, (0,)).centres(x, centres)
    assert torch.equal(centres, before)


def test_fewer_rows_than_clusters():
    x, centres = blobs(per=1)
    first = kmeans(x[:2], 3, None, (0,))
    assert sorted(first.labels) == [0, 1] and first.k == 3
    assert torch.equal(first.centres(x[:2], centres)[2], centres[2])
    later = kmeans(x[[2, 0]], 3, centres, (0,))
    assert later.iterations == 0
    assert later.labels.tolist() == [2, 0] == find_nearest(x[[2, 0]].numpy(), centres.numpy()).tolist()


def test_one_row_and_one_cluster():
    x, _ = blobs()
    assert kmeans(x[:1], 4, None, (0,)).labels.tolist() == [0]
    assert set(kmeans(x, 1, None, (0,)).labels) == {0}


def test_the_seed_decides():
    x = torch.rand(60, 3, generator=torch.Generator().manual_seed(1))
    runs = [kmeans(x, 6, None, (s, 0)).labels.tolist() for s in (0, 0, 1, 2, 3)]
    assert runs[0] == runs[1] and len({tuple(r) for r in runs}) > 1
    np.random.seed(5)
    assert kmeans(x, 6, None, (0, 0)).labels.tolist() == runs[0]


@pytest.mark.parametrize("start", [None, [0, 7, 11]])
def test_threads_do_not_change_the_labels(start):
    x = torch.rand(700, 30, generator=torch.Generator().manual_seed(1))
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            c = kmeans(x, 3, None if start is None else x[start], (3,))
            found.append((c.labels.tolist(), c.iterations, c.centres(x, x[:3]).tolist()))
    assert found[0] == found[1]


def test_a_table_by_client_is_copied():
    table = torch.tensor([-1, -1, 4])
    assert replace_entries(table, np.array([0, 2]), np.array([5, 6])).tolist() == [5, -1, 6]
    assert table.tolist() == [-1, -1, 4]


def test_short_points_are_as_far_from_each_other_as_the_long_rows():
    x = 100 + torch.randn(12, 5000, generator=torch.Generator().manual_seed(0))
    x[3] = x[8]
    points = embed_rows(x.double() @ x.double().T)
    assert points.shape[1] <= 11 and torch.allclose(points.mean(0), torch.zeros(1).double(), atol=1e-6)
    assert torch.allclose(torch.cdist(points, points), torch.cdist(x.double(), x.double()), atol=1e-4)
    # All rows are equal.
    assert embed_rows(torch.ones(4, 4)).shape == (4, 1)


def test_long_rows_are_clustered_by_short_points():
    x, centres = blobs(spread=5.)
    both = torch.cat([x, x[:3]]).double()
    points = embed_rows(both @ both.T)
    for by_points, by_rows in ((lloyd(points[:18], points[18:]), lloyd(x, x[:3])),
                               (kmeans(points[:18], 3, None, (1,)), kmeans(x, 3, None, (1,)))):
        assert by_points.labels.tolist() == by_rows.labels.tolist()


class Given:
    """Rows that lie here, as a handle on those of clients."""

    def __init__(self, rows):
        self.rows = rows

    def gather(self):
        return self.rows

    def gram(self, origin, *, blocks):
        rows = torch.cat([(self.rows - origin)[:, block] for block in blocks], 1).double()
        return rows @ rows.T


def cluster_given(rows, centres, keep_empty=False):
    squares = ((rows[:, None] - centres) ** 2).sum(2)
    return cluster_models(Given(rows), Given(squares), centres, (1,), keep_empty=keep_empty)


def test_fewer_models_than_centres_take_the_nearest_one_without_an_iteration():
    x, centres = blobs(per=1, spread=.1)
    found = cluster_given(x[1:], centres)
    assert (found.labels.tolist(), found.iterations, found.distance) == ([1, 2], 0, 0)


def test_as_many_models_as_centres_are_clustered():
    """Two models are nearest to the first centre; k-means gives the second centre one of them."""
    x, start = torch.tensor([[0., 0.], [4., 0.], [50., 50.]]), torch.tensor([[1., 0.], [9., 0.], [49., 50.]])
    found = cluster_given(x, start)
    assert found.labels.tolist() == kmeans(x, 3, start, (1,)).labels.tolist() == [0, 1, 2]
    assert found.iterations > 0 and found.distance == pytest.approx(0, abs=1e-6)


def test_models_start_at_random_where_all_centres_are_equal():
    x = blobs(spread=5.)[0]
    found = cluster_given(x, torch.ones(3, 40))
    points = embed_rows((x - 1).double() @ (x - 1).double().T)
    assert found.labels.tolist() == kmeans(points, 3, None, (1,)).labels.tolist()
    assert found.distance == pytest.approx(compute_mean_distance(x, found.labels)) and found.iterations > 0


def test_models_start_from_the_first_of_equal_centres():
    x = blobs(per=30, d=3, spread=5.)[0] + 30
    start = x[[40, 0, 0, 70]] + 2
    found, expected = cluster_given(x, start), kmeans(x.double(), 4, start.double(), (1,))
    assert found.labels.tolist() == expected.labels.tolist()
    assert found.iterations == expected.iterations


@pytest.mark.parametrize("rows", [[1, 2, 9, 10, 11], [1, 2]])
def test_the_members_of_an_empty_cluster_may_be_absent(rows):
    """Four groups are planted and rows come from two of them: the other two centres stay, and no row takes them."""
    groups = torch.tensor([[0., 0.], [50., 0.], [0., 50.], [50., 50.]])
    x = (groups.repeat_interleave(6, 0) + torch.rand(24, 2, generator=torch.Generator().manual_seed(1)))[rows]
    nearest = [row // 6 for row in rows]
    for found in (kmeans(x, 4, groups, (1,), keep_empty=True), cluster_given(x, groups, keep_empty=True)):
        assert found.labels.tolist() == nearest
    if len(rows) > 4:      # scikit-learn takes them for lost
        assert len(set(kmeans(x, 4, groups, (1,)).labels)) == len(set(cluster_given(x, groups).labels)) == 4


def test_settled_is_scikit_learns_where_no_cluster_empties():
    x, _ = blobs(spread=5.)
    found, expected = lloyd(x, x[:3]), kmeans(x, 3, x[:3], (0,))
    assert found.labels.tolist() == expected.labels.tolist() and found.iterations > 1 and found.k == 3
    weight = np.arange(1., 19.)
    expected = KMeans(3, init=x[:3].double().numpy(), n_init=1).fit(x.double().numpy(), sample_weight=weight)
    assert lloyd(x, x[:3], weight).labels.tolist() == expected.labels_.tolist()
    assert kmeans(x, 3, x[:3], (0,), weight).labels.tolist() == expected.labels_.tolist()


def test_a_settled_cluster_may_stay_empty():
    x, centres = blobs(k=2)
    far = torch.full((1, 40), 1e3)
    assert lloyd(x, torch.cat([far, centres])).labels.tolist() == np.repeat([1, 2], 6).tolist()
    assert lloyd(x[:1], torch.cat([far, centres])).labels.tolist() == [1]


def test_weights_draw_the_centres():
    """Of four points on a line the heavy end draws its centre away from the second one."""
    x = torch.tensor([[0.], [4.], [7.], [10.]])
    plain, heavy = (lloyd(x, x[:2], w).labels.tolist() for w in (None, [1, 1, 1, 100]))
    assert (plain, heavy) == ([0, 1, 1, 1], [0, 0, 1, 1])


def test_iterations_are_counted_and_limited(monkeypatch):
    """The centres 0 and 4 become 0 and 7, and no row changes its cluster."""
    x = torch.tensor([[0.], [4.], [7.], [10.]])
    assert lloyd(x, x[:2]).iterations == 2
    monkeypatch.setattr(module, "MAX_ITERATIONS", 1)
    assert lloyd(x, x[:2]).iterations == 1


@pytest.mark.parametrize("n, d", [(9, 500), (30, 4), (1, 5)])
def test_embedded_rows_have_the_distances_of_the_rows(n, d):
    x = 3 + torch.randn(n, d, generator=torch.Generator().manual_seed(2)).double()
    points = embed_rows(x @ x.T)
    assert points.shape == (n, max(1, min(n - 1, d)))
    assert torch.allclose(torch.cdist(points, points), torch.cdist(x, x), atol=1e-6)
    k = min(n, 3)
    assert kmeans(points, k, None, (1,)).labels.tolist() == kmeans(x, k, None, (1,)).labels.tolist()


def test_equal_rows_are_one_point():
    assert torch.allclose(embed_rows(torch.ones(4, 4)), torch.zeros(4, 1).double(), atol=1e-6)
    assert set(kmeans(embed_rows(torch.ones(4, 4)), 1, None, (0,)).labels) == {0}


def test_two_parts_by_complete_linkage():
    angles = torch.tensor([0., .1, 3., .2, 3.2]).double()
    cosines = torch.cos(angles[:, None] - angles)
    assert split_in_two(cosines).tolist() == [False, False, True, False, True]
    # Of equal parts the one with the first row stays.
    assert split_in_two(cosines[1:][:, 1:]).tolist() == [False, True, False, True]
    assert split_in_two(cosines[2:][:, 2:]).tolist() == [False, True, False]


def test_mini_batches_find_what_all_rows_show():
    x, _ = blobs(per=200)
    found = kmeans(x, 3, None, (1,), batch=50)
    assert adjusted_rand_score(np.repeat([0, 1, 2], 200), found.labels) == 1 and found.iterations > 0
    assert found.labels.tolist() == kmeans(x, 3, None, (1,), batch=50).labels.tolist()
    warm = kmeans(x, 3, x[::200], (1,), batch=50)
    assert warm.labels.tolist() == np.repeat([0, 1, 2], 200).tolist()


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_tables_of_more_than_1_gib_are_clustered_in_single_precision(monkeypatch):
    """In single precision these rows are equal."""
    rows = (1 << 40) + torch.tensor([[0.], [1.], [10.], [11.]]).double()
    assert 8 * module.LARGE_TABLE == 1 << 30
    start = rows[[0, 2]]
    for numbers in (module.LARGE_TABLE, len(rows)):
        monkeypatch.setattr(module, "LARGE_TABLE", numbers)
        assert kmeans(rows, 2, start, (0,)).labels.tolist() == [0, 0, 1, 1]
    monkeypatch.setattr(module, "LARGE_TABLE", len(rows) - 1)
    assert set(kmeans(rows, 2, start, (0,)).labels) == {0}
    assert kmeans(rows - (1 << 40), 2, start - (1 << 40), (0,)).labels.tolist() == [0, 0, 1, 1]


def test_the_first_of_equal_rows():
    rows = torch.tensor([[1., 2.], [0., 2.], [1., 2.], [1., 3.], [0., 2.]])
    assert find_first_equal(rows).tolist() == [0, 1, 0, 3, 1]


def test_equal_rows_are_clustered_without_a_word():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert len(set(kmeans(torch.ones(4, 3), 2, None, (1,)).labels)) == 1
    assert not said
