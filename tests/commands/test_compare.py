"""Two runs side by side."""
from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.commands.compare import compare, side_by_side
from fedmpi.errors import BadInput


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
    assert row.startswith("2 " + " ".join(f"{100 * line['accuracy_mean']:.2f} %" for line in found))
    assert not any(row.startswith("3 ") for row in rows)      # B has no third round
    assert rows[-1] == f"different digests: A {bench.result('a')['digest'][:16]}, B {bench.result('b')['digest'][:16]}"


def test_the_same_run_twice(bench, wide):
    assert bench.lead("c") == bench.lead("d") == 0
    text = compare(bench.out("c"), bench.out("d"))
    assert "no setting differs" in text and "the same digest" in text


def test_an_unfinished_run(tmp_path):
    for name in "xy":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("seed: 0\n")
    text = compare(tmp_path / "x", tmp_path / "y")
    assert "no round was evaluated by both" in text and "digests: A not finished, B not finished" in text


def test_of_many_rounds_some_are_shown(wide):
    shown = [line.split()[0] for line in side_by_side(lines(range(1, 101)), lines(range(2, 101, 2))).splitlines()[2:]]
    assert len(shown) == 12 and shown[-1] == "100" and set(map(int, shown)) <= set(range(2, 101, 2))


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(BadInput, match="same folder"):
        compare(tmp_path, tmp_path)
    with pytest.raises(BadInput, match="is not the folder of a run"):
        compare(tmp_path, tmp_path / "none")
