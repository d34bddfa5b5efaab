"""Names of a report's files, however long those of its rows and columns are."""
from __future__ import annotations

from pathlib import Path

import pytest

from fedmpi.report import figures, write
from fedmpi.report.figures.registry import Entry
from fedmpi.report.file_names import make_file_part
from fedmpi.report.results import ReportRun, Results
from fedmpi.sweeps import job as jobfile
from tests.report import made

JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml"))
LONG = ", ".join(f"data.partition.setting_{i}=value_{i}" for i in range(9))


@pytest.mark.parametrize("name, part", [
    ("FedMHC, weak (1)", "fedmhc-weak-1"), ("x" * 80, "x" * 80), ("x" * 81, "x" * 80 + "-4d1f7bb8"),
    ("x" * 79 + " y", "x" * 79 + "-bfedb505")])
def test_long_names_are_cut_and_end_in_a_hash(name, part):
    assert make_file_part(name) == part


def test_names_that_differ_at_their_ends_have_different_files():
    assert make_file_part(LONG + "1") != make_file_part(LONG + "2")


def test_shipped_jobs_have_the_files_that_they_had():
    names = [name for path in JOBS for job in [jobfile.load_job(str(path))] for name in (*job.rows, *job.columns)]
    assert len(names) > 100 and all(make_file_part(name) == jobfile.make_slug(name) for name in names)


def test_names_that_are_alike_have_figures_of_their_own(tmp_path, monkeypatch):
    """FedProx and FedProx+ are the same part of a file's name, and so are row `a` of `b c` and row `a b` of `c`."""
    for kind in ("OF_RESULTS", "OF_COLUMN"):
        monkeypatch.setattr(figures, kind, [])
    monkeypatch.setattr(figures, "OF_RUN", [Entry("clusters", "said", lambda run: run)])
    cells = [("FedProx", "one"), ("FedProx+", "one"), ("a", "b c"), ("a b", "c")]
    runs = [ReportRun(row, column, 0, tmp_path / f"{row}{column}") for row, column in cells]
    results = Results("t", "c", [*dict(cells)], ["one", "b c", "c"], [0], runs)
    assert {p.name: (p.figure.row, p.figure.column) for p in figures.draw_figures(results)} == dict(zip(
        ("clusters-fedprox-one", "clusters-fedprox-one-2", "clusters-a-b-c", "clusters-a-b-c-2"), cells, strict=True))


@pytest.mark.slow("a report with all figures")
@pytest.mark.filterwarnings("ignore:constrained_layout not applied")
def test_a_report_of_long_names_is_whole(tmp_path):
    rows, columns, measure = [f"a {LONG}"], [f"{LONG}, seven", f"{LONG}, eight"], "a_measure" * 30
    runs = [ReportRun(rows[0], column, 0, made.run(tmp_path / str(i), lines=made.LINES[3], history=made.HISTORY[3],
                                                   result={measure: 1.})) for i, column in enumerate(columns)]
    results = Results("t", "c", rows, columns, [0], runs, {"accuracy_mean": {}, measure: {}})
    folder = write.write_report(results, tmp_path / "report").parent
    names = [path.name for path in folder.iterdir()]
    assert max(map(len, names)) < 200
    for kind, count in (("accuracy", 2), ("clusters", 2), ("table-", 2)):
        assert len([name for name in names if name.startswith(kind) and not name.endswith("svg")]) == count, kind
