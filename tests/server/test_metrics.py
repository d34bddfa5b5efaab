"""Measures of a client against scikit-learn, and their summary over clients."""
from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, adjusted_rand_score, f1_score

from fedmpi.clients.measures import measure_logits
from fedmpi.server.early_stopping import find_best_validation_line, name_validation_key
from fedmpi.server.metrics import (
    ClusterTracker,
    compute_embedding,
    compute_gini,
    compute_worst_decile,
    find_best_line,
    make_history_columns,
    make_metrics_line,
    split_measures,
    summarise_clients,
)
from fedmpi.server.run_state import RunState
from fedmpi.task import CLASSIFICATION, MeasureNames

PLAIN, TWO = MeasureNames(CLASSIFICATION, ()), MeasureNames(CLASSIFICATION, ("auc", "ece"))


@given(n=st.integers(1, 40), c=st.integers(2, 7), seed=st.integers(0, 999))
def test_measures_are_scikit_learns(n, c, seed):
    generator = torch.Generator().manual_seed(seed)
    logits, y = torch.randn(n, c, generator=generator), torch.randint(c, (n,), generator=generator)
    correct, tested, loss, f1 = measure_logits(logits, y)
    predicted = logits.argmax(1)
    assert tested == n and correct / n == accuracy_score(y, predicted)
    assert f1 == pytest.approx(f1_score(y, predicted, average="macro", zero_division=0))
    assert loss == pytest.approx(float(F.cross_entropy(logits, y)) * n, rel=1e-5)


def row(correct, tested, loss=0., f1=.5):
    return [correct, tested, loss, f1]


def test_summary_weighs_as_it_says():
    found = summarise_clients(np.array([row(1, 2, 3., .2), row(9, 10, 5., .6), row(0, 4, 8., .1)], float), PLAIN)
    accuracy = [.5, .9, 0.]
    assert found["accuracy_mean"] == pytest.approx(np.mean(accuracy))
    assert found["accuracy_weighted"] == pytest.approx(10 / 16)
    assert found["accuracy_std"] == pytest.approx(np.std(accuracy))
    assert found["accuracy_worst_decile"] == 0 and found["f1_mean"] == pytest.approx(.3)
    assert found["accuracy_variance"] == pytest.approx(np.var(accuracy))
    assert found["accuracy_gini"] == pytest.approx((.4 + .5 + .9) / 3 / 3 / np.mean(accuracy))
    assert found["loss"] == pytest.approx(np.mean([1.5, .5, 2.]))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
@settings(max_examples=30)
def test_gini_is_half_of_the_mean_difference_relative_to_the_mean(values):
    a = np.array(values)
    expected = np.abs(a[:, None] - a).mean() / (2 * a.mean()) if a.any() else 0
    assert compute_gini(a) == pytest.approx(expected, abs=1e-9)


def test_gini_of_equal_and_of_utterly_unequal_values():
    assert compute_gini(np.zeros(3)) == compute_gini(np.full(4, .3)) == 0
    assert compute_gini(np.array([0, 0, 0, .7])) == pytest.approx(3 / 4)


def test_a_further_measure_is_averaged_where_it_is_defined():
    """Client 1 has no AUC, client 2 no test samples, and client 3 was not evaluated."""
    rows = np.array([[*row(1, 2), .5, .1], [*row(1, 2), np.nan, .2], [*row(0, 0), .9, .9], [np.nan] * 6,
                     [*row(2, 2), 1., np.inf]])
    found = summarise_clients(rows, TWO)
    assert list(found)[-4:] == ["auc_mean", "auc_undefined", "ece_mean", "ece_undefined"]
    assert (found["auc_mean"], found["auc_undefined"]) == (.75, 1)
    assert (found["ece_mean"], found["ece_undefined"]) == (pytest.approx(.15), 1)
    nobody = summarise_clients(rows[2:4], TWO)
    assert nobody.keys() == found.keys() and nobody["auc_undefined"] == 0 and np.isnan(nobody["auc_mean"])
    undefined = summarise_clients(rows[1:2], TWO)
    assert np.isnan(undefined["auc_mean"]) and undefined["auc_undefined"] == 1


def test_further_measures_have_columns_for_every_ending():
    table = np.arange(1, 1 + 2 * 3 * 7, dtype=float).reshape(2, 3, 7)
    rows = split_measures(table)
    found = make_history_columns(rows, TWO)
    np.testing.assert_array_equal(found["auc"], rows[""][:, 4])
    np.testing.assert_array_equal(found["ece_after"], rows["_after"][:, 5])
    line = make_metrics_line(rows, np.array([True, False]), TWO)
    assert line["auc_mean"] == rows[""][0, 4] and line["ece_mean_unadapted"] == rows["_unadapted"][0, 5]


def test_clients_without_test_data_are_left_out():
    rows = np.array([row(1, 2), row(0, 0, 0, np.nan), [np.nan] * 4, row(3, 4)], float)
    assert summarise_clients(rows, PLAIN) == summarise_clients(rows[[0, 3]], PLAIN)
    assert summarise_clients(rows, PLAIN)["accuracy_mean"] == pytest.approx(.625)


def test_nobody_with_test_data_gives_nan():
    found = summarise_clients(np.full((3, 4), np.nan), PLAIN)
    assert found.keys() == summarise_clients(np.array([row(1, 2)]), PLAIN).keys()
    assert all(np.isnan(v) for v in found.values())


@pytest.mark.parametrize("n, worst", [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (25, 3)])
def test_the_worst_decile_is_a_tenth_rounded_up(n, worst):
    accuracy = np.random.default_rng(0).permutation(np.arange(n) / 100)
    assert compute_worst_decile(accuracy, CLASSIFICATION) == pytest.approx(np.arange(worst).mean() / 100)


def test_groups_note_sizes_changes_and_the_rand_index():
    planted = np.array([0, 0, 1, 1, 2, 2])
    groups = ClusterTracker(6, planted)
    facts = groups.update(np.array([0, 1, 2]), np.array([3, 3, 0]), 4)
    assert facts["cluster_sizes"] == [1, 0, 0, 2] and facts["cluster_changes"] == 0
    # Clients seen so far count.
    assert facts["ari"] == adjusted_rand_score(planted[:3], [3, 3, 0]) == 1
    facts = groups.update(np.array([1, 3, 4, 5]), np.array([0, 0, 0, 2]), 4)
    assert facts["cluster_sizes"] == [3, 0, 1, 0] and facts["cluster_changes"] == 1
    assert facts["ari"] == pytest.approx(adjusted_rand_score(planted, [3, 0, 0, 0, 0, 2]))


def test_groups_note_what_participants_tell_and_its_means():
    groups, honest = ClusterTracker(4, np.array([0, 1, 1, 0]), ["other", "few-shot"]), np.full(4, True)
    facts = groups.summarise(np.array([0, 1]), {"lam": np.array([1., 5.])}, honest)
    assert facts == {"lam_mean": 3., "lam_other": 1., "lam_few_shot": 5.}
    facts = groups.summarise(np.array([1, 3]), {"lam": np.array([7., 3.])}, honest)
    assert facts == {"lam_mean": pytest.approx(11 / 3), "lam_other": 2., "lam_few_shot": 7.}
    np.testing.assert_array_equal(groups.each["lam"], [1, 7, np.nan, 3])
    # attackers do not count
    facts = groups.summarise(np.array([0]), {"lam": np.array([-9.])}, np.array([False, True, True, True]))
    assert facts == {"lam_mean": 5., "lam_other": 3., "lam_few_shot": 7.}
    facts = ClusterTracker(2, None).summarise(np.array([1]), {"lam": np.array([2.])}, honest[:2])
    # The groups have no names.
    assert facts == {"lam_mean": 2.}
    assert np.isnan(ClusterTracker(2, np.array([0, 1]), ["a", "b"]).summarise(
        np.array([1]), {"lam": np.array([2.])}, honest[:2])["lam_a"])


def test_purity_is_the_share_in_the_commonest_planted_group():
    groups = ClusterTracker(6, np.array([0, 0, 1, 1, 2, 2]))
    # Clients seen so far count.
    assert groups.update(np.array([0, 1, 2]), np.array([3, 3, 0]), 4)["purity"] == 1
    assert groups.update(np.array([1, 3, 4, 5]), np.array([0, 0, 0, 2]), 4)["purity"] == pytest.approx((1 + 2 + 1) / 6)
    # All are in one group.
    assert groups.update(np.arange(6), np.zeros(6, int), 4)["purity"] == pytest.approx(1 / 3)
    # If everybody is alone, purity is 1; the ARI shows that.
    assert groups.update(np.arange(6), np.arange(6), 6)["purity"] == 1
    assert "purity" not in ClusterTracker(2, None).update(np.array([0]), np.array([0]), 1)


def test_pictures_are_principal_components():
    """They equal scikit-learn's PCA up to signs and keep distances."""
    from sklearn.decomposition import PCA
    rows = torch.randn(70, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 3
    found = compute_embedding(rows @ rows.T)
    assert found.shape == (70, 50) and found.dtype == np.float32
    np.testing.assert_allclose(np.abs(found), np.abs(PCA(50).fit_transform(rows)), atol=1e-4)
    few = compute_embedding(rows[:4] @ rows[:4].T)
    assert few.shape == (4, 50) and not few[:, 4:].any()
    np.testing.assert_allclose(np.linalg.norm(few[:, None] - few, axis=2), torch.cdist(rows[:4], rows[:4]), atol=1e-4)


def test_without_planted_groups_there_is_no_rand_index():
    assert "ari" not in ClusterTracker(2, None).update(np.array([0]), np.array([0]), 1)


def test_the_first_of_rounds_that_are_equal_on_paper_is_the_best():
    """Three clients have 3, 2 and 1 of 10 samples right, then 1, 2 and 3: the means differ in their last bits."""
    means = [sum(right) / 3 for right in ([.3, .2, .1], [.1, .2, .3])]
    assert means[0] != means[1]
    for order in (means, means[::-1]):
        lines = [{"round": i, "accuracy_mean": mean, "accuracy_mean_validation": mean} for i, mean in enumerate(order)]
        assert find_best_line(lines)["round"] == find_best_validation_line(lines)["round"] == 0


def test_a_checkpoint_is_the_best_by_test_samples_if_nobody_has_others():
    beside = name_validation_key(CLASSIFICATION)
    lines_of = [{"round": 1, "accuracy_mean": .8, beside: float("nan")}]
    assert RunState((), None, 1, metrics=lines_of).score() == .8
    assert RunState((), None, 1, metrics=[lines_of[0] | {beside: .3}]).score() == .3
    assert RunState((), None, 2, metrics=lines_of).score() != RunState((), None, 2, metrics=lines_of).score()
