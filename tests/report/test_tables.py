"""Tables of runs that were written by hand, compared character by character."""
from __future__ import annotations

import dataclasses

import pytest

from fedmpi.commands.planned_steps import steps_to_text
from fedmpi.errors import BadInput
from fedmpi.report import latex, length, measure_names, steps, tables
from fedmpi.report.results import ReportRun, Results
from fedmpi.report.tables import Cell
from tests.report import made

MARKDOWN = r"""| | one | steps | length | published | difference | two |
|---|--:|--:|--:|--:|--:|--:|
| Alpha | 55.00 ± 7.07 | 1,875.8 | 5 % of 80 | 80.00 ± 1.50 | -25.00 | **40.00 ± 0.00** |
| Beta & co | **70.00** * | 400 | - | 75.00 | -5.00 | - * |
| Gamma | 25.00 ± 7.07 | 600 | 0.27 % of 1,500 | 30.00 | -5.00 | **40.00 ± 7.07** |

steps: gradients behind a client's evaluated model, mean over clients; two models side by side take two

steps are not known of two: runs of fedmpi 0.1 did not count them; run them again

one: unequal work, from 400 steps (Beta & co) to 1,875.8 (Alpha)

length: the rounds of a run, as a share of those behind the published number

\* not all seeds are finished

one: order of 3 rows against the published one, Kendall's tau 0.33

| steps by kind | one |
|---|---|
| Alpha | main 1,800, mix 75.8 |
| Beta & co | main 400 |
| Gamma | main 600 |
"""
LATEX = r"""% \usepackage{booktabs}
\begin{table}
\centering
\caption{Best \& all}
\begin{tabular}{lrrrrrr}
\toprule
 & \multicolumn{5}{c}{one} & \multicolumn{1}{c}{two} \\
 & here & steps & length & published & difference & here \\
\midrule
{}Alpha & $55.00 \pm 7.07$ & $1{,}875.8$ & 5 \% of 80 & $80.00 \pm 1.50$ & $-25.00$ & $\mathbf{40.00 \pm 0.00}$ \\
{}Beta \& co & $\mathbf{70.00}$$^{*}$ & $400$ & -- & $75.00$ & $-5.00$ & --$^{*}$ \\
{}Gamma & $25.00 \pm 7.07$ & $600$ & 0.27 \% of 1,500 & $30.00$ & $-5.00$ & $\mathbf{40.00 \pm 7.07}$ \\
\midrule
Kendall's $\tau$ & \multicolumn{5}{c}{$0.33$} & \multicolumn{1}{c}{} \\
\bottomrule
\end{tabular}
\par $^{*}$ not all seeds are finished
\par steps: gradients behind a client's evaluated model, mean over clients; two models side by side take two
\par steps are not known of two: runs of fedmpi 0.1 did not count them; run them again
\par one: unequal work, from 400 steps (Beta \& co) to 1,875.8 (Alpha)
\par length: the rounds of a run, as a share of those behind the published number
\end{table}
"""
CSV = """row,column,mean,std,seeds,published,published_std,\
steps,steps_main,steps_head,steps_mix,steps_warm_up,steps_fine_tuning,steps_judging,rounds,published_rounds
Alpha,one,55,7.071067812,2,80.0,1.5,1875.75,1800,0,75.75,0,0,0,4,80
Alpha,two,40,0,2,,,,,,,,,,,
Beta & co,one,70,,1,75.0,,400,400,0,0,0,0,0,,
Beta & co,two,,,0,,,,,,,,,,,
Gamma,one,25,7.071067812,2,30.0,,600,600,0,0,0,0,0,4,1500
Gamma,two,40,7.071067812,2,,,,,,,,,,,
"""
SECONDS = r"""| | one | steps | two |
|---|--:|--:|--:|
| Alpha | 3.00 ± 1.41 | 1,875.8 | **5.00 ± 0.00** |
| Beta & co | 9.00 * | 400 | - * |
| Gamma | **1.50 ± 0.71** | 600 | 7.00 ± 1.41 |

steps: gradients behind a client's evaluated model, mean over clients; two models side by side take two

steps are not known of two: runs of fedmpi 0.1 did not count them; run them again

one: unequal work, from 400 steps (Beta & co) to 1,875.8 (Alpha)

\* not all seeds are finished
"""
BY_KIND = r"""
| steps by kind | one |
|---|---|
| Alpha | main 1,800, mix 75.8 |
| Beta & co | main 400 |
| Gamma | main 600 |
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return tables.make_tables(made.results(tmp_path_factory.mktemp("made")))


def test_a_table_in_every_form(found):
    assert [table.measure for table in found] == ["accuracy_best_on_test", "seconds"]
    assert tables.table_to_markdown(found[0]) == MARKDOWN
    assert latex.to_latex(found[0], "Best & all") == LATEX
    assert tables.to_csv(found[0]) == CSV
    assert tables.table_to_markdown(found[1]) == SECONDS + BY_KIND
    assert tables.table_to_markdown(found[1], by_kind=False) == SECONDS
    assert [cell.missing for cell in found[0].cells.values()] == [0, 0, 1, 2, 0, 0]


def test_errors_of_any_size_keep_their_digits():
    """Four digits are shown, and a CSV file has all that mean something."""
    form = tables.ERROR_FORM
    cells = {("a", "x"): Cell([1.25e-5, 1.5e-5], 0, (2e-5, None), form=form), ("b", "x"): Cell([.0123456789], 0, None,
                                                                                           form=form)}
    table = tables.fill_table("mse_mean", ["a", "b"], ["x"], cells)
    assert "| a | **1.375e-05 ± 1.768e-06** | 2e-05 | -6.25e-06 |" in tables.table_to_markdown(table)
    assert "| b | 0.01235 | - | - |" in tables.table_to_markdown(table)
    line = (r"{}a & $\mathbf{1.375 \cdot 10^{-5} \pm 1.768 \cdot 10^{-6}}$ & $2 \cdot 10^{-5}$ & "
            r"$-6.25 \cdot 10^{-6}$ \\")
    assert line in latex.to_latex(table, "t") and latex.write_math("1.5e+12") == r"$1.5 \cdot 10^{12}$"
    rows = tables.to_csv(table).splitlines()
    assert rows[1].startswith("a,x,1.375e-05,1.767766953e-06,2,2e-05,,") and rows[2].startswith("b,x,0.0123456789,,1,")


def test_many_steps_keep_their_digits_in_a_csv_file():
    assert steps.list_csv_steps({"main": 1234567, "mix": 7654321.25})[:2] == ["8888888.25", "1234567"]
    assert steps.list_csv_steps(None)[:2] == ["", ""]


def test_a_column_without_published_numbers_has_one_place_in_latex(found):
    text = latex.to_latex(found[1], "x")
    assert r"\begin{tabular}{lrrr}" in text and "published" not in text and "tau" not in text
    assert r"{}Gamma & $\mathbf{1.50 \pm 0.71}$ & $600$ & $7.00 \pm 1.41$ \\" in text


@pytest.mark.parametrize("made, published, shown", [
    (500, 500, "100 % of 500"), (600, 500, "120 % of 500"), (50, 2000, "2.5 % of 2,000"), (100, 2000, "5 % of 2,000"),
    (19, 2000, "0.95 % of 2,000"), (24, 250, "9.6 % of 250"), (99, 1000, "9.9 % of 1,000"),
    (100, 1000, "10 % of 1,000"), (2, 5000, "0.04 % of 5,000")])
def test_a_length_is_a_share_of_the_published_one(made, published, shown):
    assert length.show_length(length.Length(made, published)) == shown


def test_the_length_of_a_cell_is_that_of_its_finished_runs():
    found = length.find_length([{"rounds": 2}, None, {"rounds": 5}], 7)
    assert found == (3.5, 7)
    assert length.find_length([None], 7) is length.find_length([{"rounds": 2}], None) is None


def counted(**rows):
    cells = {(name, "x"): Cell([1.], 0, None, steps=made) for name, made in rows.items()}
    return tables.fill_table("loss", list(rows), ["x"], cells)


@pytest.mark.parametrize("rows, notes, columns", [
    # within one in a hundred: equal work
    ({"a": {"main": 200}, "b": {"main": 198}}, [steps.STEPS_EXPLAINED], 2),
    ({"a": {"main": 200}, "b": {"main": 197.5}},
     [steps.STEPS_EXPLAINED, "x: unequal work, from 197.5 steps (b) to 200 (a)"], 2),
    ({"a": {"main": 200}, "b": {"main": 100, "head": 50}},
     [steps.STEPS_EXPLAINED, "x: unequal work, from 150 steps (b) to 200 (a)"], 2),
    ({"a": {"main": 200}, "b": None}, [steps.STEPS_EXPLAINED, steps.UNCOUNTED.format("x (b)")], 2),
    ({"a": None, "b": None}, [steps.UNCOUNTED.format("x")], 1)])
def test_a_table_says_whose_work_was_unequal_or_is_not_known(rows, notes, columns):
    table = counted(**rows)
    assert table.notes() == notes and len(table.heads("x")) == columns == len(table.texts("a", "x"))
    assert ("steps by kind" in tables.table_to_markdown(table)) == ("head" in str(rows))
    assert tables.to_csv(table).count("150,100,50,0,0,0,0") == ("head" in str(rows))


def test_steps_are_means_of_the_runs_that_finished_if_all_counted():
    assert steps.compute_mean_steps_of_cell([None, {"steps_so_far": {"main": 3}},
                                             {"steps_so_far": {"main": 4, "mix": 1}}]) == {"main": 3.5, "mix": .5}
    assert (
        steps.compute_mean_steps_of_cell([{"steps_so_far": {"main": 3}}, {"rounds": 4}]) is None
        and steps.compute_mean_steps_of_cell([None]) is None
    )
    assert steps_to_text({"fine_tuning": 1234.56, "main": 2}) == "fine tuning 1,234.6, main 2"
    assert steps_to_text(None) == steps.show_steps(None) == "-"


@pytest.mark.parametrize("measures, wanted", [
    ([.5, .6], ([50., 60.], 0, 0)), ([.5, "none"], ([50.], 0, 1)), (["none", "none"], ([], 0, 0)),
    ([.5, None], ([50.], 1, 0)), ([None, None], ([], 2, 0)), (["none", None], ([], 1, 0)),
    ([0., 0.], ([0., 0.], 0, 0))])
def test_seeds_are_missing_if_not_finished_and_undefined_if_others_have_a_number(tmp_path, measures, wanted):
    """None stands for a run that is not finished, "none" for one whose result lacks the measure."""
    runs = []
    for seed, value in enumerate(measures):
        result = None if value is None else {} if value == "none" else {"f1_mean": value}
        made.run(tmp_path / str(seed), result=result and result | {"rounds": 4} if value != "none" else {"x": 1})
        runs.append(ReportRun("a", "x", seed, tmp_path / str(seed)))
    made.run(tmp_path / "other", result={"f1_mean": .1})
    results = Results("t", "c", ["a", "b"], ["x"], [0, 1], [*runs, ReportRun("b", "x", 0, tmp_path / "other")])
    cell = tables.make_table(results, "f1_mean", {}).cells["a", "x"]
    assert (cell.values, cell.missing, cell.undefined) == wanted and cell.published is None


def test_a_measure_is_only_refused_once_all_runs_are_finished(tmp_path):
    """Until then one that is not finished may be of a method that has it."""
    made.run(tmp_path / "a")
    results = Results("t", "c", ["a"], ["x"], [0], [ReportRun("a", "x", 0, tmp_path / "a")])
    assert tables.make_table(results, "nonsense", {}).cells["a", "x"].missing == 1
    made.run(tmp_path / "b", result={"nonsens": 1})
    results.runs.append(ReportRun("b", "x", 0, tmp_path / "b"))
    assert tables.make_table(results, "nonsense", {}).cells["a", "x"].missing == 1
    results.runs.pop(0)
    with pytest.raises(BadInput, match="measure 'nonsense': no finished run has it .*; did you mean nonsens[?]"):
        tables.make_table(results, "nonsense", {})
    with pytest.raises(BadInput, match="in its result.json$"):
        tables.make_table(results, "zzz", {})
    with pytest.raises(BadInput, match="in its result.json; it is taken if evaluate.measures names auc$"):
        tables.make_table(results, "auc_mean", {})
    # A further table may be empty: the others are written all the same.
    results.measures = {"nonsens": {}, "zzz": {}}
    assert [table.cells["b", "x"].values for table in tables.make_tables(
        dataclasses.replace(results, rows=["b"]))] == [[1], []]


@pytest.mark.parametrize("measure, value, more", [
    ("steps_so_far", {"main": 3}, "which a table needs, and every table shows the steps"),
    ("cluster_sizes", [1, 2], "which a table needs"), ("engine", "loop", "which a table needs")])
def test_a_measure_that_is_no_number_is_refused(tmp_path, measure, value, more):
    made.run(tmp_path / "a", result={measure: value})
    results = Results("t", "c", ["a"], ["x"], [0], [ReportRun("a", "x", 0, tmp_path / "a")])
    with pytest.raises(BadInput, match=f"measure '{measure}': it is not a number, {more}$"):
        tables.make_table(results, measure, {})


@pytest.mark.parametrize("best, measures", [
    (max, ("accuracy_best_on_test", "accuracy_mean", "accuracy_worst_decile", "f1_mean", "ari", "purity")),
    (min, ("accuracy_std", "f1_std", "best_round", "rounds", "seconds", "T_comp", "E_comm", "mib_per_client_round",
           "bytes_sent_by_server", "distance", "loss", "iterations", "idle_share", "imbalance")),
    (None, ("nmi", "components", "lam_mean", "ranks", "arithmetic_error", "aucune", "f10", "losses", "E_most"))])
def test_the_best_is_the_most_or_the_least(best, measures):
    cells = {(name, "x"): Cell([value], 0, None) for name, value in (("a", 2.), ("b", 5.), ("c", 3.))}
    cells["d", "x"] = Cell([], 1, None)
    for measure in measures:
        table = tables.fill_table(measure, list("abcd"), ["x"], cells)
        assert table.best == ({} if best is None else {"x": best(2., 5., 3.)}), measure
        assert [table.is_best(name, "x") for name in "abcd"].count(True) == (best is not None)


def test_shares_are_in_percent_and_nothing_else_is():
    named = ("accuracy_mean", "f1_std", "seconds", "ari", "loss")
    assert [measure_names.find_factor(m) for m in named] == [100, 100, 1, 1, 1]
    named = ("f1", "f10", "accuracy_variances", "accuracy_variance")
    assert [measure_names.find_factor(m) for m in named] == [100, 1, 100, 1e4]


@pytest.mark.parametrize("pairs, tau", [
    (((1, 1), (2, 3), (3, 2), (4, 4)), (2 / 3, 4)), (((1, 2), (2, 1)), None), (((1, 5), (1, 6), (1, 7)), None),
    (((1, 1), (2, 2), (None, 3), (3, 3)), (1., 3)), (((1, 1), (2, 2), (3, None)), None)])
def test_the_agreement_of_orders_counts_rows_with_both_numbers(pairs, tau):
    """One of six pairs is discordant, so tau is (5 - 1) / 6."""
    cells = [Cell([] if here is None else [here], 0, None if there is None else (there, None)) for here, there in pairs]
    assert tables.compute_kendall_agreement(cells) == (tau and (pytest.approx(tau[0]), tau[1]))


def test_means_that_are_equal_on_paper_are_ties():
    """100 * .57 and 100 * .29 are a little less than 57 and 29, and their mean is less than 43."""
    a, b, c = [100 * .57, 100 * .29], [43., 43.], [10., 10.]
    cells = {(name, "x"): Cell(values, 0, (there, None)) for name, values, there in (("a", a, 5), ("b", b, 5),
                                                                                    ("c", c, 1))}
    table = tables.fill_table("accuracy_mean", list("abc"), ["x"], cells)
    assert [table.is_best(name, "x") for name in "abc"] == [True, True, False]
    assert table.tau == {"x": (pytest.approx(1), 3)}


def test_what_was_published_may_have_a_spread():
    assert [tables.split_published(value) for value in (None, 3, [3, .5])] == [None, (3., None), (3., .5)]
    assert Cell([], 1, (3., .5)).texts() == ("-", "3.00 ± 0.50", "-")
    assert Cell([1.005, 2.995], 0, None).texts() == ("2.00 ± 1.41", "-", "-")
    assert Cell([4.], 0, (3., None)).texts() == ("4.00", "3.00", "+1.00")


def test_a_finished_seed_without_a_number_has_a_mark_of_its_own():
    """An undefined measure is not a seed that is still to be run."""
    cells = {("a", "x"): tables.Cell([80.], 0, None, undefined=1), ("b", "x"): tables.Cell([70.], 1, None)}
    table = tables.fill_table("auc_mean", ["a", "b"], ["x"], cells)
    text, tex = tables.table_to_markdown(table), latex.to_latex(table, "t")
    assert "| a | **80.00** § |" in text and "| b | 70.00 * |" in text and f"§ {tables.UNDEFINED}: a (x)" in text
    assert r"$^{\S}$ &" not in tex and tex.count(r"$^{\S}$") == 2
