"""Tables and pictures of a job whose runs really ran."""
from __future__ import annotations

import csv
import json

import pytest

from fedmpi.comm.world import Solo
from fedmpi.report import plots, tables
from fedmpi.report.tables import Cell
from fedmpi.report.write import write
from fedmpi.run import lead
from fedmpi.sweep import job as jobfile
from tests.sweep import jobs


@pytest.fixture(scope="module")
def ran(tmp_path_factory, cache):
    """A job of which one run was left out."""
    folder = tmp_path_factory.mktemp("job")
    path = jobs.write(folder, cache, seeds=[0, 1], also={"best_round": {"Local": {"beta 1": 7}}})
    job = jobfile.load(path)
    runs = jobfile.expand(job, path, folder / "out", None)
    for run in runs[:-1]:
        assert lead(Solo(), str(run.config), run.overrides, str(run.folder), None, lambda: False) == 0
    return job, runs


def test_cells_are_means_over_seeds(ran):
    job, runs = ran
    table = tables.cells(job, runs)
    results = [json.loads((r.folder / "result.json").read_text()) for r in runs
               if (r.row, r.column) == ("FedAvg", "beta 1")]
    found = table["FedAvg", "beta 1"]
    assert found.mean == pytest.approx(50 * sum(r["accuracy_best"] for r in results)) and found.spread is not None
    assert found.missing == 0 and table["Local", "beta 1"].missing == 1
    assert table["FedAvg", "beta .3"].published == (31.89, .44) and table["Local", "beta .3"].published == (50., None)


def test_the_page_and_its_pictures(ran, tmp_path):
    job, runs = ran
    page = write(job, runs, tmp_path, "fedmpi sweep job.yaml").read_text()
    assert "`fedmpi sweep job.yaml`" in page and "31.89 +- 0.44" in page and "not all seeds are finished" in page
    for picture in ("accuracy-beta-.3", "accuracy-beta-1", "clusters-fedmhc-weak-beta-.3"):
        assert f"![{picture}]({picture}.png)" in page
        assert (tmp_path / f"{picture}.png").read_bytes()[:4] == b"\x89PNG"
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert len(rows) == 6 and rows[0]["row"] == "FedAvg" and float(rows[0]["mean"]) > 0
    other = list(csv.DictReader((tmp_path / "table-best-round.csv").open()))
    assert {float(r["mean"]) for r in other} <= {1., 1.5, 2.} and other[-1]["published"] == "7.0"
    assert "Percent: accuracy best" in page and "\nbest round, mean" in page
    kept = json.loads((tmp_path / "runs.json").read_text())
    assert len(kept) == 12 and kept[0]["digest"] and "seed=0" in kept[0]["command"]


def test_of_a_cost_the_least_is_the_best():
    job = jobfile.Job("t", "c", {"a": None, "b": None}, {"x": {}}, {}, {}, [0], {}, "seconds")
    table = {("a", "x"): Cell([3.], 0, None), ("b", "x"): Cell([4.], 0, None)}
    assert "| a | **3.00** |" in tables.markdown(job, table) and "| b | 4.00 |" in tables.markdown(job, table)


def test_the_best_is_bold_and_differences_are_signed():
    job = jobfile.Job("t", "c", {"a": None, "b": None, "c": None}, {"x": {}}, {}, {}, [0], {})
    table = {("a", "x"): Cell([50.], 0, (40., None)), ("b", "x"): Cell([60., 62.], 0, (70., 1.)),
             ("c", "x"): Cell([], 1, (10., None))}
    text = tables.markdown(job, table)
    assert "| a | 50.00 | 40.00 | +10.00 |" in text
    assert "| b | **61.00 +- 1.41** | 70.00 +- 1.00 | -9.00 |" in text
    assert "| c | - * | 10.00 | - |" in text and "Kendall" not in text


@pytest.mark.parametrize("measured, tau", [((1, 2, 3), "1.00"), ((3, 2, 1), "-1.00")])
def test_the_order_of_rows_is_compared(measured, tau):
    job = jobfile.Job("t", "c", dict.fromkeys("abc"), {"x": {}}, {}, {}, [0], {})
    table = {(row, "x"): Cell([float(found)], 0, (float(published), None))
             for row, found, published in zip("abc", measured, (1, 2, 3), strict=True)}
    assert f"x: order of 3 rows against the published one, Kendall's tau {tau}" in tables.markdown(job, table)


def test_curves_use_the_rounds_that_all_seeds_have():
    def line(t):
        return {"round": t, "accuracy_mean": t / 10}
    rounds, values = plots.common([[line(1), line(2), line(3)], [line(2), line(3)]])
    assert rounds.tolist() == [2, 3] and values.tolist() == [[.2, .3], [.2, .3]]
    assert plots.common([])[0].size == 0
