"""The files of a report on runs that were written by hand, and its page, read as a browser would."""
from __future__ import annotations

import base64
import json
import os
from html.parser import HTMLParser

import pytest

from fedmpi import __version__
from fedmpi.errors import StorageError
from fedmpi.report import figures, steps, tables, write
from fedmpi.report.figures import style
from fedmpi.report.results import ReportRun, Results
from tests.report import made
from tests.report.test_tables import CSV, MARKDOWN, SECONDS

SAID = ["Percent: accuracy best on test, mean ± standard deviation over 1 to 2 seeds; 4 rounds.",
        "seconds, mean ± standard deviation over 1 to 2 seeds; 4 rounds."]
# The made runs have no more files than a test needs.
NO_LINES = ("metrics.jsonl cannot be read to its end, and curves end there: Alpha, two, seed 3; Alpha, two, seed 4; "
            "Beta & co, one, seed 3; Gamma, two, seed 3; Gamma, two, seed 4")
NO_HISTORY = ("history.h5 is missing or damaged, and tests and figures leave out the clients: Alpha, two, seed 3; "
              "Alpha, two, seed 4; Beta & co, one, seed 3; Gamma, one, seed 3; Gamma, one, seed 4; Gamma, two, seed 3; "
              "Gamma, two, seed 4")
VOID = {"meta", "img", "br", "link"}


class Page(HTMLParser):
    """Collects the elements of a page: tag, attributes, and the text below each; tags must match."""

    def __init__(self, text: str):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes), []))
        if tag not in VOID:
            self.open.append(self.found[-1])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, _, text in self.open:
            text.append(data)

    def texts(self, *tags: str) -> list[str]:
        return [" ".join("".join(text).split()) for tag, _, text in self.found if tag in tags]

    def all(self, tag: str) -> list[dict]:
        return [attributes for found, attributes, _ in self.found if found == tag]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return made.results(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def folder(results, tmp_path_factory):
    """A report with only two figures, one of them broad."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw_figures", lambda results: iter([
            figures.Picture("small-x", "A <small> one", style.make_figure(1)),
            figures.Picture("broad-x", "A broad one", style.make_figure(1, 9))]))
        page = write.write_report(results, to := tmp_path_factory.mktemp("report") / "a" / "b", for_print=True)
    assert page == to / "index.html"
    return to


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "index.html").read_text())


def test_the_files(folder):
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "broad-x.pdf", "broad-x.png", "broad-x.svg", "index.html", "runs.json", "small-x.pdf",
        "small-x.png", "small-x.svg", "table-seconds.csv", "table-seconds.tex", "table.csv", "table.tex"]
    assert (folder / "README.md").read_text() == (
        "# Trial &lt;1> & more\n\n`fedmpi sweep trial.yaml`\n\n"
        f"{SAID[0]}\n\n{MARKDOWN}\n{SAID[1]}\n\n{SECONDS}\n{NO_LINES}\n\n{NO_HISTORY}\n\n"
        "![small-x](small-x.png)\n![broad-x](broad-x.png)\n")
    assert (folder / "table.csv").read_text() == CSV
    assert (folder / "table-seconds.csv").read_text().splitlines()[1] == (
        "Alpha,one,3,1.414213562,2,,,1875.75,1800,0,75.75,0,0,0,,")
    for name, said in zip(("table", "table-seconds"), SAID, strict=True):
        caption = rf"\caption{{Trial \textless{{}}1\textgreater{{}} \& more. {said}}}".replace("±", r"$\pm$")
        assert caption in (folder / f"{name}.tex").read_text()
    for name in ("small-x", "broad-x"):
        assert (folder / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"
        assert (folder / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert b"<svg" in (folder / f"{name}.svg").read_bytes()[:2000]


def test_how_each_run_is_repeated_and_what_it_gave(folder):
    kept = json.loads((folder / "runs.json").read_text())
    assert len(kept) == 12 and [run["state"] for run in kept].count("finished") == 9
    assert kept[0] == {"row": "Alpha", "column": "one", "seed": 3, "state": "finished", "rounds": 4, "seconds": 2.,
                       "command": "fedmpi run A3", "accuracy_best_on_test": .5, "accuracy_mean": .5, "digest": "d" * 64,
                       "steps_so_far": {"main": 1200, "mix": 50.5}}
    assert kept[5] == {"row": "Beta & co", "column": "one", "seed": 4, "state": "unfinished", "rounds": 0,
                       "command": "fedmpi run B4"}


def test_the_page_loads_nothing(folder, page):
    text = (folder / "index.html").read_text()
    assert not {"script", "link", "iframe"} & {tag for tag, _, _ in page.found} and "http:" not in text
    assert "https:" not in text and "@import" not in text and "url(" not in text
    policy, = (m["content"] for m in page.all("meta") if "http-equiv" in m)
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    for name, found in zip(("small-x", "broad-x"), page.all("img"), strict=True):
        form, _, data = found["src"].partition(",")
        assert form == "data:image/svg+xml;base64"
        assert base64.b64decode(data) == (folder / f"{name}.svg").read_bytes()


def test_the_page_shows_every_cell(page, results):
    assert page.texts("title", "h1") == ["Trial <1> & more"] * 2 and page.texts("code") == ["fedmpi sweep trial.yaml"]
    paragraphs = page.texts("p")
    assert [text for text in paragraphs if "rounds." in text] == SAID
    cells = page.texts("th", "td")
    assert cells[:40] == [
        "", "one", "two", "", "here", "steps", "length", "published", "difference", "here",
        "Alpha", "55.00 ± 7.07", "1,875.8", "5 % of 80", "80.00 ± 1.50", "-25.00", "40.00 ± 0.00",
        "Beta & co", "70.00*", "400", "-", "75.00", "-5.00", "-*",
        "Gamma", "25.00 ± 7.07", "600", "0.27 % of 1,500", "30.00", "-5.00", "40.00 ± 7.07",
        "Kendall's tau", "0.33 (3 rows)", "",
        "steps by kind", "one", "Alpha", "main 1,800, mix 75.8", "Beta & co", "main 400"]
    notes = [steps.STEPS_EXPLAINED, steps.UNCOUNTED.format("two"),
             "one: unequal work, from 400 steps (Beta & co) to 1,875.8 (Alpha)"]
    assert [text for text in paragraphs if "steps" in text] == 2 * notes
    assert page.texts("strong") == [
        "40.00 ± 0.00", "70.00", "40.00 ± 7.07", "5.00 ± 0.00", "1.50 ± 0.71"]
    spans = [cell.get("colspan") for cell in page.all("th")[:4]]
    assert spans == [None, "5", "1", None]
    assert [t.get("id") for t in page.all("table")] == ["accuracy_best_on_test", None, "seconds", None]
    assert [d["aria-label"] for d in page.all("div") if "aria-label" in d] == [
        "accuracy best on test", "steps by kind", "seconds", "Runs"]
    notes = [text for text in paragraphs if "bold" in text]
    assert ["seeds are finished" in note for note in notes] == [True, True]
    assert ["Kendall's tau: how well" in note for note in notes] == [True, False]


def test_the_page_shows_every_figure_and_run(page):
    assert page.texts("figcaption") == ["A <small> one", "A broad one"]
    assert [img["alt"] for img in page.all("img")] == ["A <small> one", "A broad one"]
    assert [(f["id"], f.get("class")) for f in page.all("figure")] == [("small-x", None), ("broad-x", "broad")]
    assert page.texts("h2") == ["Figures", "Runs"]
    cells = page.texts("th", "td")
    first = cells.index("run")
    assert cells[first:first + 10] == ["run", "seed", "state", "rounds", "result, or what it said last",
                                       "Alpha, one", "3", "finished", "4",
                                       "accuracy 50.00 % after 4 rounds, digest dddddddddddddddd"]
    assert len(cells) == first + 5 * 13
    assert page.texts("p")[-1] == f"fedmpi {__version__}; the command of each run is in runs.json beside this page."


@pytest.mark.parametrize("finished, rounds, measure, words", [
    ([1, 0], (4, 4), "f1_mean", "Percent: f1 mean, one seed; 4 rounds."),
    ([3, 3], (2, 4), "loss", "loss, mean ± standard deviation over 3 seeds; 2 to 4 rounds."),
    ([0, 1, 3], (2, 4), "loss", "loss, mean ± standard deviation over 1 to 3 seeds; 2 to 4 rounds.")])
def test_what_is_said_of_a_table(tmp_path, finished, rounds, measure, words):
    """Finished seeds count, whatever the job asks for."""
    runs = [ReportRun("a", "x", i, made.run(tmp_path / str(i), result={"rounds": t})) for i, t in enumerate(rounds)]
    rows = [str(n) for n in range(len(finished))]
    table = tables.fill_table(measure, rows, ["x"], {
        (row, "x"): tables.Cell([.5] * n, 0, None) for row, n in zip(rows, finished, strict=True)})
    assert write.describe_results(Results("t", "c", rows, ["x"], [1, 2, 3], runs), table) == words


def test_the_rounds_of_a_table_are_those_of_finished_runs(tmp_path):
    """Waiting and unfinished runs have no number in the table."""
    runs = [ReportRun("a", "x", i, made.run(tmp_path / str(i), lines=[{"round": t, "accuracy_mean": .5}], result=done))
            for i, (t, done) in enumerate([(4, {"accuracy_mean": .5}), (3, None)])]
    runs.append(ReportRun("b", "x", 0, tmp_path / "waiting"))
    table = tables.fill_table("loss", ["a"], ["x"], {("a", "x"): tables.Cell([.5], 1, None)})
    assert write.describe_results(Results("t", "c", ["a"], ["x"], [0, 1], runs), table) == "loss, one seed; 4 rounds."


def test_a_table_without_a_finished_run_says_so(tmp_path):
    runs = [ReportRun("a", "x", i, made.run(tmp_path / str(i), lines=[{"round": t, "accuracy_mean": .5}]))
            for i, t in enumerate((2, 4))]
    table = tables.fill_table("accuracy_mean", ["a"], ["x"], {("a", "x"): tables.Cell([], 2, None)})
    told = write.describe_results(Results("t", "c", ["a"], ["x"], [0, 1], runs), table)
    assert told == "Accuracy mean: no run is finished yet; 2 to 4 rounds so far."


def test_a_job_under_way_has_its_report_before_a_run_has_a_measure(tmp_path):
    """FedAvg has no clusters, and CFL is not finished."""
    runs = [ReportRun("FedAvg", "x", 0, made.run(tmp_path / "a", result={"rounds": 4}), 4),
            ReportRun("CFL", "x", 0, made.run(tmp_path / "b", lines=[{"round": 1, "accuracy_mean": .5}]), 4)]
    results = Results("t", "c", ["FedAvg", "CFL"], ["x"], [0], runs, {"accuracy_mean": {}, "clusters_found": {}})
    text = (write.write_report(results, tmp_path / "report").parent / "README.md").read_text()
    assert "accuracy mean, one seed" in text
    assert "Clusters found: no finished run has a number of it; 4 rounds.\n\n| | x |\n" in text


def test_a_path_that_is_no_text_is_written_with_an_escape(tmp_path, monkeypatch):
    """A report of runs in a folder whose name is in Latin-1, for example."""
    monkeypatch.setattr(figures, "draw_figures", lambda results: iter(()))
    run = ReportRun("A", "one", 0, made.run(tmp_path / "a", result={"m": 1.}))
    command = "fedmpi report " + os.fsdecode(b"caf\xe9")
    folder = write.write_report(Results("t", command, ["A"], ["one"], [0], [run], {"m": {}}), tmp_path / "to").parent
    for name in ("README.md", "index.html"):
        assert r"fedmpi report caf\udce9" in (folder / name).read_text()


def test_remarks_show_tags_as_they_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "draw_figures", lambda results: iter(()))
    run = ReportRun("A <b>", "one", 0, made.run(tmp_path / "a", result={"m": 1.}))
    folder = write.write_report(Results("t", "c", ["A <b>"], ["one"], [0], [run], {"m": {}}), tmp_path / "to").parent
    text = (folder / "README.md").read_text()
    assert text.count("A &lt;b>") == 3 and "<b>" not in text


def test_runs_json_holds_what_the_tables_show(tmp_path):
    run = ReportRun("a", "x", 0, made.run(tmp_path / "0", result={"ari": .5, "purity": 1., "mse_variance": .3}))
    results = Results("t", "c", ["a"], ["x"], [0], [run], {"ari": {}})
    write.write_tables(results, [], tmp_path)
    kept, = json.loads((tmp_path / "runs.json").read_text())
    assert kept["ari"] == .5 and kept["accuracy_mean"] == .5 and "purity" not in kept
    assert kept["mse_variance"] == .3


def test_a_report_without_figures_and_a_folder_that_cannot_be_written(results, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "draw_figures", lambda results: iter(()))
    page = Page(write.write_report(results, tmp_path / "new").read_text())
    assert page.texts("h2") == ["Runs"] and page.all("img") == []
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        write.write_report(results, tmp_path / "file" / "report")
