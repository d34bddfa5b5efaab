"""Two runs side by side."""
from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.commands.compare import COMPARED_MEASURES, compare_rounds, compare_runs
from fedmpi.errors import BadInput
from fedmpi.task import REGRESSION
from tests.report import made


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def lines(rounds):
    return [{"round": t, "accuracy_mean": t / 100, "f1_mean": None, "loss": 1.} for t in rounds]


def test_settings_measures_and_digests(bench, wide):
    assert bench.lead("a") == bench.lead("b", "method.M=2", "train.lr=.1", "rounds=2") == 0
    done = CliRunner().invoke(app, ["compare", str(bench.out("a")), str(bench.out("b"))])
    assert done.exit_code == 0, done.output
    rows = [" ".join(line.split()) for line in done.output.splitlines()]
    for line in ("rounds 3 2", "method.M 3 2", "train.lr 0.05 0.1"):
        assert line in rows
    assert sum(row.startswith(("method.", "train.", "data.", "rounds ", "seed ")) for row in rows) == 3
    found = [bench.metrics(name)[1] for name in "ab"]
    (row,) = (row for row in rows if row.startswith("2 "))
    assert row.startswith("2 " + " ".join(f"{100 * line['accuracy_mean']:.2f}" for line in found))
    # B has no third round.
    assert not any(row.startswith("3 ") for row in rows)
    assert rows[-1] == f"different digests: A {bench.result('a')['digest'][:16]}, B {bench.result('b')['digest'][:16]}"


def test_the_same_run_twice(bench, wide):
    assert bench.lead("c") == bench.lead("d") == 0
    text = compare_runs(bench.out("c"), bench.out("d"))
    assert "no setting differs" in text and "the same digest" in text


def test_every_column_holds_its_measure_of_its_run(wide):
    """Only rounds 2 and 5 were evaluated by both."""
    a = [{"round": t, "accuracy_mean": .1 * t, "accuracy_worst_decile": .01 * t, "f1_mean": .2, "loss": 1.23456}
         for t in (1, 2, 5)]
    b = [{"round": t, "accuracy_mean": .5, "accuracy_worst_decile": None, "f1_mean": .15 * t, "loss": None}
         for t in (2, 3, 5)]
    rows = [line.split("  ") for line in compare_rounds(a, b).splitlines()]
    head, _, *rows = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert head == ["round", "acc. A", "acc. B", "worst A", "worst B", "F1 A", "F1 B", "loss A",
                    "loss B"]
    assert rows == [["2", "20.00", "50.00", "2.00", "-", "20.00", "30.00", "1.235", "-"],
                    ["5", "50.00", "50.00", "5.00", "-", "20.00", "75.00", "1.235", "-"]]


def test_small_errors_keep_four_digits(wide):
    run = [{"round": 1, "mse_mean": .0001234567, "mse_worst_decile": 12.34567, "mae_mean": 0.}]
    text = compare_rounds(run, run, COMPARED_MEASURES[REGRESSION])
    assert text.splitlines()[2].split() == ["1", *["0.0001235"] * 2, *["12.346"] * 2, *["0"] * 2]


def test_at_80_columns_no_number_is_cut(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    of_all = {"accuracy_mean": 1., "accuracy_worst_decile": 1., "f1_mean": 1., "loss": 1234.5678}
    text = compare_rounds([{"round": 10000} | of_all], [{"round": 10000} | of_all])
    assert "…" not in text and text.splitlines()[2].split() == ["10000", *["100.00"] * 6, *["1234.568"] * 2]


def test_what_became_of_both(tmp_path, wide):
    lines = [{"round": 3, "accuracy_mean": .5, "loss": 1.}]
    made.run(tmp_path / "a", {"x": 1, "only": 2}, lines, result={
        "seconds": 125., "accuracy_best_on_test": .5, "rounds": 3, "steps_so_far": {"main": 30, "warm_up": 2.5}})
    made.run(tmp_path / "b", {"x": {"y": 3}}, lines)
    text = compare_runs(tmp_path / "a", tmp_path / "b")
    assert text.splitlines()[:2] == [f"A  {tmp_path}/a: finished, 3 rounds in 2 min, best 50.00 %; "
                                     "steps of a client main 30, warm up 2.5",
                                     f"B  {tmp_path}/b: unfinished, 3 rounds"]
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert rows[3] == "setting A B" and rows[5:8] == ["x 1 -", "only 2 -", "x.y - 3"]
    assert rows[-1] == f"digests: A {'d' * 16}, B not finished"
    made.run(tmp_path / "c", result={"rounds": 7})
    assert "finished, 7 rounds, best -; steps of a client -\n" in compare_runs(tmp_path / "a", tmp_path / "c")


def test_an_unfinished_run(tmp_path):
    for name in "xy":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("seed: 0\n")
    text = compare_runs(tmp_path / "x", tmp_path / "y")
    assert "no round was evaluated by both" in text and "digests: A not finished, B not finished" in text


def test_of_many_rounds_some_are_shown(wide):
    shown = [line.split()[0] for line in compare_rounds(lines(range(1, 101)), lines(range(2, 101, 2))).splitlines()[2:]]
    # These are of 50 rounds.
    assert shown == ["8", "16", "24", "32", "40", "50", "58", "66", "74", "82", "90", "100"]
    shown = [line.split()[0] for line in compare_rounds(lines(range(1, 13)), lines(range(1, 20))).splitlines()[2:]]
    assert shown == [str(t) for t in range(1, 13)]


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(BadInput, match="same folder"):
        compare_runs(tmp_path, tmp_path / ".." / tmp_path.name)
    with pytest.raises(BadInput, match="is not the folder of a run"):
        compare_runs(tmp_path, tmp_path / "none")


def test_classes_and_targets_have_no_common_table(tmp_path):
    runs = [made.run(tmp_path / name, lines=[{"round": 1, name: .5}]) for name in ("accuracy_mean", "mse_mean")]
    with pytest.raises(BadInput, match="one has learned classes and the other numbers"):
        compare_runs(*runs)


def test_the_second_table_holds_each_runs_own_numbers(tmp_path, wide):
    runs = [made.run(tmp_path / name, lines=[{"round": 1, "accuracy_mean": .5, "accuracy_gini": gini}])
            for name, gini in (("a", .125), ("b", .25))]
    rows = [line.split() for line in compare_runs(*runs).splitlines()]
    assert ["round", "1", "A", "B"] in rows
    assert ["Gini", "coefficient", "of", "accuracies,", "%", "12.50", "25.00"] in rows


def test_runs_evaluated_on_different_samples_say_so(tmp_path, wide):
    runs = [made.run(tmp_path / part, {"evaluate": {"on": part}}, lines([1])) for part in ("test", "validation")]
    assert "\n\nmeasured on different samples: A on test samples, B on validation samples" in compare_runs(*runs)
    again = made.run(tmp_path / "again", {"evaluate": {"on": "test"}}, lines([1]))
    assert "measured on" not in compare_runs(runs[0], again)


def test_without_a_common_round_there_are_no_units(tmp_path, wide):
    runs = [made.run(tmp_path / str(t), lines=lines([t])) for t in (1, 2)]
    text = compare_runs(*runs)
    assert "no round was evaluated by both" in text and "in %" not in text
