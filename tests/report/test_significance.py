"""Paired tests and mean ranks, against numbers that were worked out on paper or are printed in tables."""
from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from fedmpi.report import figures, significance
from fedmpi.report.figures.ranks import draw_mean_ranks, list_groups
from fedmpi.report.results import ReportRun, Results
from fedmpi.report.significance import MeanRanks, compare_column, compute_wilcoxon_p, correct_by_holm, rank_rows
from fedmpi.task import CLASSIFICATION, REGRESSION
from tests.report import made

ROWS = ["A", "B", "C"]
# Accuracies of six clients. C equals A except for two clients, and B is worse everywhere.
A = np.array([.9, .8, .7, .6, .5, .4])
OF = {"A": A, "B": A - np.array([.01, .02, .03, .04, .05, .06]), "C": A + np.array([0, 0, 0, 0, .1, -.2])}


@pytest.fixture
def results(tmp_path):
    """Two seeds; the second lacks row C."""
    shown = []
    for row in ROWS:
        for seed in (0, 1):
            run = made.run(tmp_path / f"{row}{seed}", history={"round": [1, 2], "accuracy": [A * 0, OF[row]]},
                           result={"ranks": 3 if row == "A" else 1} if (row, seed) != ("C", 1) else None)
            shown.append(ReportRun(row, "x", seed, run))
    return Results("t", "c", ROWS, ["x"], [0, 1], shown)


def test_holm_multiplies_the_smallest_the_most_and_keeps_the_order():
    assert correct_by_holm([.01, .04, .03, None]) == pytest.approx([.03, .06, .06, None])
    assert correct_by_holm([.9, .8]) == pytest.approx([1., 1.]) and correct_by_holm([None]) == [None]


def test_wilcoxons_p_of_six_pairs():
    """All six have one sign, so p is 2 / 2^6."""
    assert compute_wilcoxon_p(np.arange(1., 7)) == pytest.approx(2 / 64)
    assert compute_wilcoxon_p(np.arange(1., 6)) is None and compute_wilcoxon_p(np.zeros(6)) == 1
    assert compute_wilcoxon_p(np.arange(-6., 2)) == pytest.approx(compute_wilcoxon_p(-np.arange(-6., 2)))


def test_wilcoxons_p_is_exact_where_clients_tie():
    """Four of 20 are better and 16 equal: all four signs agree in 2 of 16 cases. Five equal gains: 2 of 32. One: 1."""
    assert compute_wilcoxon_p(np.array([.1, .2, .3, .4] + [0.] * 16)) == pytest.approx(1 / 8)
    assert compute_wilcoxon_p(np.array([.1] * 5 + [0.] * 15)) == pytest.approx(1 / 16)
    assert compute_wilcoxon_p(np.array([.1] + [0.] * 19)) == 1
    # however many are equal
    assert compute_wilcoxon_p(np.array([.1] * 5 + [0.] * 295)) == pytest.approx(1 / 16)


@pytest.mark.parametrize("pairs", [200, 201])
def test_wilcoxons_p_of_many_pairs(pairs):
    """Exact up to 200, then the normal approximation, which is near: the two must agree."""
    differences = np.random.default_rng(3).normal(.12, 1, pairs)
    exact = scipy.stats.wilcoxon(differences, method="exact").pvalue
    found = compute_wilcoxon_p(differences)
    near = scipy.stats.wilcoxon(differences).pvalue
    assert found == pytest.approx(exact if pairs == 200 else near, rel=1e-9) and found == pytest.approx(exact, rel=.02)
    assert exact != pytest.approx(near, rel=1e-4)


def test_clients_with_other_samples_are_no_pairs(results, tmp_path):
    """Rows of a job may change the data: their clients have the same numbers and other samples."""
    def make(row, name, data, federation=None, more=()):
        settings = {"data": {"root": name} | data} | dict(more)
        result = {"ranks": 1} | ({"federation": federation} if federation else {})
        run = made.run(tmp_path / name, settings, history={"round": [2], "accuracy": [OF[row]]}, result=result)
        return ReportRun(row, "x", 0, run)
    dirichlet = [{"clients": 6, "partition": {"name": "dirichlet", "beta": beta}} for beta in (.1, 10)]
    results.seeds = [0]
    results.runs = [make("A", "a", dirichlet[0]), make("B", "b", dirichlet[0]), make("C", "c", dirichlet[1])]
    b, c = compare_column(results, "x").tests
    assert b.worse == 6 and np.isnan(c.difference) and c.p_clients is None
    results.runs[1] = make("B", "v", dirichlet[0] | {"root": "b"}, None, {"evaluate": {"on": "validation"}})
    assert np.isnan(compare_column(results, "x").tests[0].difference)
    # The hash of the samples decides where both runs have one; a setting that only one version has does not count.
    results.runs = [make("A", "d", dirichlet[0], "1"), make("B", "e", dirichlet[0], "2"),
                    make("C", "f", dirichlet[0] | {"task": "classification"})]
    b, c = compare_column(results, "x").tests
    assert np.isnan(b.difference) and (c.better, c.worse) == (1, 1)


@pytest.mark.parametrize("rows, seeds", [(1, 6), (2, 7), (9, 9), (14, 10)])
def test_the_seeds_that_p_over_seeds_needs(rows, seeds):
    """With all seeds better, the smallest corrected p is rows * 2 / 2^seeds."""
    tests = [significance.RowTest(str(i), 0., 0, 0, None, None) for i in range(rows)]
    text = significance.explain_tests([significance.Comparison("x", "b", tests)])
    assert f"from {seeds} seeds on" in text and "best of its column" not in text
    assert rows * 2 / 2 ** seeds < .05 <= rows * 2 / 2 ** (seeds - 1) or seeds == 6


def test_rows_are_tested_against_the_best_on_common_seeds(results):
    found = compare_column(results, "x")
    assert (found.column, found.reference) == ("x", "A")
    b, c = found.tests
    assert (b.row, b.better, b.worse, b.p_seeds) == ("B", 0, 12, None)
    assert b.difference == pytest.approx(-3.5)
    assert b.p_clients == pytest.approx(2 * compute_wilcoxon_p(np.repeat(OF["B"] - A, 2)))
    assert (c.row, c.better, c.worse) == ("C", 1, 1) and c.difference == pytest.approx(-100 / 60)
    text = significance.tests_to_markdown([found])
    assert "| x: against A | points |" in text and "| B | -3.50 | 0 / 12 | " in text
    assert significance.explain_tests([found]) in text and "can fall below .05 from 7 seeds on. The row at" in text
    assert significance.tests_to_markdown([]) == ""


def test_rows_are_tested_against_the_baseline_that_a_job_names(results):
    results.baseline = "B"
    found = compare_column(results, "x")
    assert found.reference == "B" and [(t.row, t.better, t.worse) for t in found.tests] == [("A", 12, 0), ("C", 5, 1)]
    assert found.tests[0].difference == pytest.approx(3.5)
    # A baseline that has no finished run gives way to the best row.
    results.runs = [run for run in results.runs if run.row != "B"]
    assert compare_column(results, "x").reference == "A"


TENTHS = np.array([8, 9, 7, 6, 8, 9]), np.array([7, 8, 8, 7, 7, 8])


@pytest.mark.parametrize("task, parts", [
    (CLASSIFICATION, 10), (REGRESSION, -10), (REGRESSION, -7e-5), (REGRESSION, -1e9)])
def test_differences_that_are_equal_on_paper_are_ties(task, parts):
    """Four differences are 1 and two are -1, divided by `parts`. They have one rank, so p is that of at least four of
    six coins with the same side, 44 / 64. By floating-point arithmetic they differ in the last digit."""
    mine, others = (values / parts for values in TENTHS)
    assert len(set(np.abs(mine - others))) > 1
    found = significance.compare_rows("a", {0: mine}, {0: others}, task)
    assert found.p_clients == pytest.approx(44 / 64) == compute_wilcoxon_p((TENTHS[0] - TENTHS[1]).astype(float))
    assert sorted([found.better, found.worse]) == [2, 4]
    # The same of means over the clients of a seed.
    seeds = [{seed: values[[seed, seed]] for seed in range(6)} for values in (mine, others)]
    assert significance.compare_rows("a", *seeds, task).p_seeds == pytest.approx(44 / 64)


def test_errors_are_rounded_by_their_typical_size_whatever_one_client_does():
    """A client whose model diverged, and one of infinite error, change no other difference."""
    errors = -np.array([1e-6, 2e-6, 3e-6, 0., 1e-6, 2e-6])
    worse = 1.5 * errors - np.array([0, 0, 0, 0, 1e30, np.inf])
    found = significance.compare_rows("a", {0: errors}, {0: worse}, REGRESSION)
    assert (found.better, found.worse) == (5, 0)
    assert significance.find_typical_size(REGRESSION, [np.array([0., np.nan, np.inf])]) == 1


def test_one_finished_row_has_nothing_to_be_compared_with(results):
    results.runs = results.of("A", "x")
    assert compare_column(results, "x") is None and rank_rows(results) is None


def test_a_client_without_test_data_and_federations_of_other_sizes_do_not_count(results, tmp_path):
    lacking = np.append(OF["B"][:5] - .1, np.nan)
    results.runs[2] = ReportRun("B", "x", 0, made.run(tmp_path / "d", result={"ranks": 1}, history={
        "round": [1], "accuracy": [lacking]}))
    results.runs[3] = ReportRun("B", "x", 1, made.run(tmp_path / "e", result={"ranks": 1}, history={
        "round": [1], "accuracy": [A[:4] - .3]}))
    b = compare_column(results, "x").tests[0]
    assert (b.worse, b.p_clients) == (5, None) and b.difference == pytest.approx(-13.)


def test_mean_ranks_over_blocks_in_which_all_rows_are_finished(results, tmp_path):
    # There is one block.
    assert rank_rows(results) is None
    for row, accuracies in OF.items():
        for column in "yz":
            values = OF["A"] if row == "B" and column == "z" else accuracies
            results.runs.append(ReportRun(row, column, 0, made.run(
                tmp_path / f"{row}{column}", result={"ranks": 1}, history={"round": [1], "accuracy": [values]})))
    results.columns = ["x", "y", "z"]
    ranks = rank_rows(results)
    # x and y have the order A, C, B; in z A and B share the first two places.
    assert ranks.columns == 3 and ranks.means == pytest.approx([3.5 / 3, (3 + 3 + 1.5) / 3, (2 + 2 + 3) / 3])
    axes, = draw_mean_ranks(results).axes
    assert {text.get_text() for text in axes.texts} == {"A (1.17)", "C (2.33)", "B (2.50)"}
    assert axes.get_xlabel() == "mean rank over 3 columns, of each the mean over its seeds (critical difference 1.91)"
    # a point for each row, and a bar over all three
    assert [len(line.get_xdata()) for line in axes.lines] == [1, 1, 1, 2]
    # names stand inside the frame
    figure = axes.figure
    figure.draw_without_rendering()
    frame = axes.get_window_extent()
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
               for box in (text.get_window_extent() for text in axes.texts))


def test_no_bar_joins_rows_that_no_result_could_tell_apart(results, tmp_path):
    """Of one column and three rows the critical difference is 3.31, and the largest difference of mean ranks 2."""
    rank_more_seeds(results, tmp_path)
    results.seeds = [0, 2]
    ranks = rank_rows(results)
    assert ranks.columns == 1 and not ranks.can_differ and ranks.critical_difference == pytest.approx(3.314, abs=1e-3)
    axes, = draw_mean_ranks(results).axes
    assert [len(line.get_xdata()) for line in axes.lines] == [1, 1, 1]
    assert "3.31:\nwith so few, no difference could be significant)" in axes.get_xlabel()


def test_a_variant_has_no_rank(results, tmp_path):
    results.rows, results.variants = [*ROWS, "A2"], {"A2": "A"}
    assert rank_more_seeds(results, tmp_path, A2=A).rows == ROWS


def rank_more_seeds(results, folder, **last):
    """Add finished runs of seeds 2 and 3 of all rows, whose accuracies are those of OF or `last`; return the ranks."""
    results.seeds += [2, 3]
    for row in results.rows:
        for seed in (2, 3):
            history = {"round": [1], "accuracy": [last.get(row, OF.get(row))]}
            results.runs.append(ReportRun(row, "x", seed, made.run(folder / f"{row}{seed}", result={"ranks": 1},
                                                                   history=history)))
    return rank_rows(results)


def test_a_row_without_test_samples_has_no_rank(results, tmp_path):
    results.rows = [*ROWS, "D"]
    nothing = {"round": [1], "accuracy": [A * np.nan]}
    results.runs += [ReportRun("D", "x", seed, made.run(tmp_path / f"none{seed}", result={"accuracy_mean": None},
                                                        history=nothing)) for seed in (0, 1)]
    ranks = rank_more_seeds(results, tmp_path, D=A * np.nan)
    assert ranks.rows == ROWS and ranks.columns == 1 and ranks.means == pytest.approx([1, 3, 2])
    found = compare_column(results, "x")
    assert found.reference == "A" and [test.row for test in found.tests] == ["B", "C"]
    # A row that is not finished may still get accuracies, so there are no ranks without it.
    results.runs.append(ReportRun("D", "x", 4, made.run(tmp_path / "begun")))
    assert rank_rows(results) is None


def test_a_seed_in_which_a_row_has_no_accuracy_is_no_block(results, tmp_path):
    results.runs[2] = ReportRun("B", "x", 0, made.run(tmp_path / "none", result={"ranks": 1}, history={
        "round": [1], "accuracy": [A * np.nan]}))
    ranks = rank_more_seeds(results, tmp_path)
    assert ranks.columns == 1 and ranks.means == pytest.approx([1, 3, 2])


def test_if_no_client_has_test_samples_there_is_a_report_without_ranks(results, tmp_path):
    nothing = {"round": [1], "accuracy": [A * np.nan]}
    results.runs = [ReportRun(row, "x", seed, made.run(tmp_path / f"no{row}{seed}", result={"accuracy_mean": None},
                                                       history=nothing)) for row in ROWS for seed in (0, 1)]
    assert rank_rows(results) is None and compare_column(results, "x") is None
    assert list(figures.draw_figures(results)) == []


def test_means_that_are_equal_on_paper_share_a_rank(results, tmp_path):
    """The clients of C have the accuracies of A in another order, whose sum differs in the last digit."""
    first, second = np.array([.1, .2, .3, .4, .6, .7]), np.array([.1, .2, .3, .6, .7, .4])
    assert first.mean() != second.mean()
    results.runs, results.seeds = [], []
    ranks = rank_more_seeds(results, tmp_path, A=first, B=first - .1, C=second)
    assert ranks.means == pytest.approx([1.5, 3, 1.5])


@pytest.mark.parametrize("rows, q", [(3, 2.343), (4, 2.569), (10, 3.164)])
def test_the_critical_difference_is_that_of_the_printed_table(rows, q):
    """q is as Demsar prints it for level .05 (table 5a)."""
    ranks = MeanRanks([str(i) for i in range(rows)], [0.] * rows, 14)
    assert ranks.critical_difference == pytest.approx(q * np.sqrt(rows * (rows + 1) / (6 * 14)), abs=2e-3)


def test_groups_that_do_not_differ():
    assert list_groups([1., 2., 3., 4.5], 1.) == [(0, 1), (1, 2)]
    assert list_groups([1., 1.5, 2., 5.], 1.) == [(0, 2)] and list_groups([1., 3.], 1.) == []


def test_small_differences_of_errors_are_shown_and_are_no_points():
    """Errors may be of any size. Those of the row are larger by 2.5e-5."""
    errors = np.array([1., 2, 3, 4, 5, 6]) * 1e-5
    test = significance.compare_rows("a", {0: -errors - 2.5e-5}, {0: -errors}, REGRESSION)
    found = significance.Comparison("x", "b", [test], REGRESSION)
    assert found.heads[0] == "less error" and found.texts == [["a", "-2.5e-05", "0 / 6", ".031", "-"]]
    text = significance.tests_to_markdown([found])
    assert "| x: against b | less error | better" in text and "| a | -2.5e-05 | 0 / 6 |" in text
    assert "points" not in text


@pytest.mark.parametrize("p, text", [(None, "-"), (.0004, "< .001"), (.0312, ".031"), (1., "1")])
def test_ps_as_text(p, text):
    assert significance.format_p(p) == text


def test_times_on_different_numbers_of_ranks_are_marked(results):
    from fedmpi.report.figures.accuracy import draw_accuracy_by_seconds
    for run in results.runs:
        run.__dict__["outcome"] = run.outcome._replace(lines=[{"round": 1, "accuracy_mean": .5, "seconds": 1.}])
    assert draw_accuracy_by_seconds(results, "x").get_suptitle() == (
        "not comparable: runs had different numbers of MPI ranks (1: B, C; 3: A)")
    results.rows = ["B", "C"]
    assert draw_accuracy_by_seconds(results, "x").get_suptitle() == ""


def test_a_row_without_a_seed_in_common_has_no_numbers():
    """Names may hold what would end a cell of Markdown."""
    test = significance.compare_rows("a|b", {0: A}, {1: A})
    assert significance.format_test(test) == ["a|b", "-", "-", "-", "-"]
    text = significance.tests_to_markdown([significance.Comparison("n=2|3", "c", [test])])
    assert text.splitlines()[0].startswith(r"| n=2\|3: against c | points |")
    assert text.splitlines()[2] == r"| a\|b | - | - | - | - |"


def test_the_best_row_is_found_on_the_seeds_that_all_have():
    clients = {"A": {0: np.array([.9]), 1: np.array([.1])}, "B": {0: np.array([.8])}}
    assert significance.find_best_row(clients) == "A"
