"""Tables and files of a report on real runs."""
from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.config.schema import to_plain
from fedmpi.errors import BadInput
from fedmpi.report import escapes, latex, tables
from fedmpi.report.results import collect_folder_results
from fedmpi.report.tables import Cell
from fedmpi.storage import run_status
from fedmpi.sweeps.job import plan_job
from tests.report import made

pytestmark = pytest.mark.slow("runs, and reports with all figures")


def test_cells_are_means_over_seeds(results):
    cells = tables.make_tables(results)[0].cells
    found = [json.loads((run.folder / "result.json").read_text()) for run in results.of("FedAvg", "few-shot")]
    cell = cells["FedAvg", "few-shot"]
    assert cell.mean == pytest.approx(50 * sum(r["accuracy_best_on_test"] for r in found)) and cell.spread is not None
    assert cell.missing == 0 and cells["FedCPS", "few-shot"].missing == 1
    assert cells["FedAvg", "beta .3"].published == (31.89, .44) and cells["Local", "beta .3"].published == (50., None)


def test_the_files(results, report):
    page = (report / "README.md").read_text()
    assert "`fedmpi sweep job.yaml`" in page and "31.89 ± 0.44" in page and "not all seeds are finished" in page
    for picture in ("accuracy-beta-.3", "clusters-fedmhc-co-beta-.3", "tsne-local-beta-.3"):
        assert f"![{picture}]({picture}.png)" in page
        assert (report / f"{picture}.png").read_bytes()[:4] == b"\x89PNG"
        assert b"<svg" in (report / f"{picture}.svg").read_bytes()[:2000]
    rows = list(csv.DictReader((report / "table.csv").open()))
    assert len(rows) == 8 and rows[0]["row"] == "FedAvg" and float(rows[0]["mean"]) > 0
    other = list(csv.DictReader((report / "table-best-round.csv").open()))
    assert {float(r["mean"]) for r in other} <= {1., 1.5, 2.} and other[5]["published"] == "7.0"
    assert "Percent: accuracy best on test" in page and "\nbest round, mean" in page
    kept = json.loads((report / "runs.json").read_text())
    assert len(kept) == 16 and kept[0]["digest"] and "seed=0" in kept[0]["command"]
    assert [run["state"] for run in kept].count("waiting") == 1


def test_the_table_in_latex(report):
    text = (report / "table.tex").read_text()
    assert r"FedMHC \& co & $" in text and r"$31.89 \pm 0.44$" in text and r"\begin{tabular}{lrrrrrr}" in text
    assert text.count(r"\mathbf{") >= 2 and r"Kendall's $\tau$" in text and r"$^{*}$ not all seeds" in text
    body = text.partition(r"\midrule")[2].partition(r"\midrule")[0].strip().splitlines()
    assert len(body) == 4 and all(line.count("&") - line.count(r"\&") == 6 for line in body)
    assert escapes.escape_latex("|a| < b > c") == (
        r"\textbar{}a\textbar{} \textless{} b \textgreater{} c")
    assert escapes.escape_latex("a_b% #1 {x}~^\\") == (
        r"a\_b\% \#1 \{x\}\textasciitilde{}\textasciicircum{}\textbackslash{}")


def few(*cells: Cell, measure="accuracy_mean") -> tables.Table:
    names = list("abcd"[:len(cells)])
    return tables.fill_table(measure, names, ["x"], {(name, "x"): cell for name, cell in zip(names, cells,
                                                                                             strict=True)})


def test_the_best_is_bold_and_differences_are_signed():
    text = tables.table_to_markdown(
        few(Cell([50.0], 0, (40.0, None)), Cell([60.0, 62.0], 0, (70.0, 1.0)), Cell([], 1, (10.0, None)))
    )
    assert "| a | 50.00 | 40.00 | +10.00 |" in text
    assert "| b | **61.00 ± 1.41** | 70.00 ± 1.00 | -9.00 |" in text
    assert "| c | - * | 10.00 | - |" in text and "Kendall" not in text


def test_a_row_that_never_split_is_marked(results, monkeypatch):
    """It is marked only if no seed has more than one cluster and the method reports their number."""
    for run, clusters in zip(results.of("FedMHC & co", results.columns[0]), (1, 1), strict=True):
        monkeypatch.setitem(run.outcome.result, "clusters_found", clusters)
    for run, clusters in zip(results.of("Local", results.columns[0]), (1, 3), strict=True):
        monkeypatch.setitem(run.outcome.result, "clusters_found", clusters)
    table = tables.make_table(results, "accuracy_best_on_test", {})
    assert [place for place, cell in table.cells.items() if cell.unsplit] == [("FedMHC & co", results.columns[0])]
    text, tex = tables.table_to_markdown(table), latex.to_latex(table, "t")
    assert text.count(" † |") == 1 and "\n† clusters were never split: FedAvg with a plain mean\n" in text
    assert tex.count(r"$^{\dagger}$ &") == 1 and r"\par $^{\dagger}$ clusters were never split" in tex
    assert "never split" not in tables.table_to_markdown(few(Cell([3.], 0, None)))


def test_of_a_cost_the_least_is_the_best():
    text = tables.table_to_markdown(few(Cell([3.], 0, None), Cell([4.], 0, None), measure="seconds"))
    assert "| a | **3.00** |" in text and "| b | 4.00 |" in text


def test_of_an_agreement_the_most_is_the_best():
    assert "| b | **0.90** |" in tables.table_to_markdown(few(Cell([.3], 0, None), Cell([.9], 0, None), measure="ari"))


def test_nothing_is_best_where_it_is_not_known_what_that_is():
    both = Cell([3.], 0, None), Cell([4.], 0, None)
    assert "**" not in tables.table_to_markdown(few(*both, measure="nmi"))
    assert "| a | **3.00** |" in tables.table_to_markdown(few(*both, measure="accuracy_std"))


def test_a_measure_that_no_run_has_is_refused(results):
    finished = replace(results, runs=results.runs[:-1])
    with pytest.raises(BadInput, match="'acuracy_best': no finished run has it .* did you mean .*accuracy_best_on"):
        tables.make_table(finished, "acuracy_best", {})


def test_names_cannot_break_a_table():
    cells = {("[ours] a|<b>", "x|y"): Cell([1.], 0, None)}
    table = tables.fill_table("accuracy_mean", ["[ours] a|<b>"], ["x|y"], cells)
    assert tables.table_to_markdown(table).splitlines()[0] == r"| | x\|y |"
    assert r"| [ours] a\|&lt;b> |" in tables.table_to_markdown(table)
    assert "{}[ours] a" in latex.to_latex(table, "t")


@pytest.mark.parametrize("measured, tau", [((1, 2, 3), "1.00"), ((3, 2, 1), "-1.00")])
def test_the_order_of_rows_is_compared(measured, tau):
    table = few(*(Cell([float(m)], 0, (float(p), None)) for m, p in zip(measured, (1, 2, 3), strict=True)))
    assert f"x: order of 3 rows against the published one, Kendall's tau {tau}" in tables.table_to_markdown(table)


def test_runs_without_a_job_are_sorted_by_what_differs(results):
    folders = [run.folder for run in results.runs[:-1]]
    found = collect_folder_results(folders)
    assert found.rows == ["FedAvg", "FedMHC", "Local", "FedCPS"] and found.seeds == [0, 1] and len(found.columns) == 2
    assert "data.partition.name=few_shot" in found.columns[1] and "seed" not in found.columns[1]
    ours, theirs = (list(tables.make_tables(r)[0].cells.values())[:7] for r in (found, results))
    assert [cell.values for cell in ours] == [cell.values for cell in theirs]


RESULT = {"rounds": 4, "accuracy_mean": .5, "accuracy_best_on_test": .5, "digest": "d" * 64}


def test_a_report_says_what_is_not_finished_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, result in (("a", RESULT), ("b c", None), ("d", None)):
        made.run(Path(name), {"seed": len(name), "method": {"name": "local" if name == "d" else "fedavg"}},
                 result=result)
    Path("d.txt").write_text("job 7: start 1 on n1: c.yaml\nfedmpi: no\njob 7: ended with code 1\n")

    def report(*paths):
        done = CliRunner().invoke(app, ["report", *paths])
        assert done.exit_code == 0
        return done.stdout.splitlines()
    assert report("a") == ["report report/index.html"]
    assert report("a", "b c", "d", "d") == [
        "report report/index.html", "1 of 3 runs finished (1 failed, 1 unfinished), and the tables show only these; "
        "continue them with --resume auto, and `fedmpi status a 'b c' d` says how far each is"]
    assert report("d")[1].startswith("no run is finished yet (1 failed), so the tables have no numbers; continue")


def test_the_tables_show_the_measures_that_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("title: t\nconfig: quickstart\nmeasure: accuracy_best_on_test\n"
                                "rows: {FedAvg: fedavg}\ncolumns: {digits: {}}\npublished: {FedAvg: {digits: 60.5}}\n")
    (planned,) = plan_job("job.yaml", None, None)[1]
    folder = planned.folder
    folder.parent.mkdir(parents=True)
    made.run(folder, to_plain(planned.settings), result=RESULT | {"accuracy_worst_decile": .25})

    def report(*words):
        done = CliRunner().invoke(app, ["report", *words])
        page = Path(words[-1], "README.md")
        lines = page.read_text().splitlines() if page.exists() else []
        return done.exit_code, done.stderr, [line for line in lines if line.startswith("| FedAvg")]
    two = ("--measure", "accuracy_worst_decile", "--measure", "accuracy_best_on_test")
    code, said, asked = report(str(folder), *two, "--to", "two")
    assert (code, said, len(asked)) == (0, "", 2) and " ".join(two) in Path("two", "README.md").read_text()
    assert "25.00" in asked[0] and "50.00" in asked[1]
    # The published number of the job's measure stands beside that measure alone.
    code, said, of_job = report("job.yaml", *two, "--to", "job")
    assert (code, said) == (0, "") and ["60.50" in line for line in of_job] == [False, True], of_job
    # What is asked for is checked, not what it stands for.
    Path("job.yaml").write_text(Path("job.yaml").read_text().replace("accuracy_best_on_test", "mse_mean"))
    assert report("job.yaml", *two, "--to", "again")[0] == 0
    assert "measure mse_mean is taken by no run" in report("job.yaml", "--to", "again")[1]
    code, said, none = report(str(folder), "--measure", "accuracy_worst", "--to", "none")
    assert code == 2 and not none and "measure 'accuracy_worst': no finished run has it" in said
    assert "did you mean accuracy_worst_decile" in said.replace("'", "")


@pytest.mark.parametrize("words, said", [
    (["gpu_day.json", "--measure", "rounds"], "--measure rounds: the tables of a day with a GPU are always the same; "
                                              "leave it out"),
    (["gpu_day.json", "--print"], "--print: the report of a day with a GPU has no figures; leave it out"),
    (["a", "--out", "x"], "--out x says where the runs of a job are, and no job file was given; leave it out; --to "
                          "says where the report goes"),
    (["gpu_day.json", "--scale", "s"], "--scale s chooses a variant of a job, and no job file was given; leave it out; "
                                       "--to says where the report goes"),
    *((["a/" + name], f"a/{name} is a file of a run, not a job; give the folder of the run, a")
      for name in ("config.yaml", "result.json", "metrics.jsonl", "history.h5"))])
def test_what_is_no_job_is_refused_in_one_line(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    made.run(Path("a"), result=RESULT, lines=[{"round": 4}], history={"round": [4]})
    done = CliRunner().invoke(app, ["report", *words])
    assert (done.exit_code, done.stderr) == (2, f"fedmpi: {said}\n") and not Path("report").exists()


def test_what_is_no_run_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 2 and "there is no run in this folder or below it" in done.output
    assert not (tmp_path / "report").exists()
    with pytest.raises(BadInput, match="is not the folder of a run"):
        run_status.read_settings(tmp_path)
