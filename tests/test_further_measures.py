"""Further measures from the configuration to every place that shows them."""
from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import fedmpi
from fedmpi import decision
from fedmpi.commands.compare import compare_runs
from fedmpi.config.schema import resolve
from fedmpi.errors import BadInput
from fedmpi.report import measure_names, results, tables
from fedmpi.storage.history import read_history
from tests.own_code.modules import write

ASKED = "evaluate.measures=[auc, calibration_error, 'mine_of_run:share_right']"
METHOD = "from fedmpi.methods.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"
OWN = "def share_right(logits, y):\n    return (logits.argmax(1) == y).double().mean()\n"


@pytest.fixture(scope="module")
def runs(bench):
    """Return the folder of a run with further measures, and of the same without."""
    write(bench.folder, {"mine_of_run.py": OWN})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(bench.folder)
        assert bench.lead("with", "rounds=2", ASKED) == bench.lead("without", "rounds=2") == 0
    return bench.out("with"), bench.out("without")


def test_they_change_no_other_number(bench, runs):
    assert bench.result("with")["digest"] == bench.result("without")["digest"]
    new = {"auc_mean", "auc_undefined", "calibration_error_mean", "calibration_error_undefined", "share_right_mean",
           "share_right_undefined"}
    for line, plain in zip(bench.metrics("with"), bench.metrics("without"), strict=True):
        assert line.keys() - plain.keys() == new and plain.keys() <= line.keys()
        assert all(line[key] == plain[key] for key in plain if key.startswith(("accuracy", "f1", "loss", "cluster")))


def test_the_line_is_the_mean_of_the_columns(bench, runs):
    history, lines = read_history(runs[0] / "history.h5"), bench.metrics("with")
    # A user's own measure, which computes the accuracy.
    np.testing.assert_allclose(history["share_right"], history["accuracy"])
    for name in ("auc", "calibration_error", "share_right"):
        for column, line in zip(history[name], lines, strict=True):
            assert line[f"{name}_mean"] == pytest.approx(np.nanmean(column))
            assert line[f"{name}_undefined"] == np.isnan(column).sum()
    result = bench.result("with")
    assert result["auc_mean"] == lines[-1]["auc_mean"] and result["accuracy_gini"] == lines[-1]["accuracy_gini"]
    assert list(result["own_code"]) == ["mine_of_run"]
    assert fedmpi.load_result(runs[0]).clients()["auc"].tolist() == pytest.approx(
        history["auc"][-1].tolist(), nan_ok=True)


def test_compare_shows_them_beside_the_fairness(runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = compare_runs(*runs)
    result = fedmpi.load_result(runs[0]).values
    rows = [" ".join(line.split()) for line in text.splitlines()]
    gini, variance = 100 * result["accuracy_gini"], 1e4 * result["accuracy_variance"]
    assert f"Gini coefficient of accuracies, % {gini:.2f} {gini:.2f}" in rows
    assert f"variance of accuracies (%^2) {variance:.3f} {variance:.3f}" in rows
    assert f"auc, mean of the clients {result['auc_mean']:.4g} -" in rows and "…" not in text


def test_a_report_has_a_table_of_each(runs):
    found = results.collect_folder_results([runs[0]])
    assert list(found.measures)[1:] == ["auc_mean", "calibration_error_mean", "share_right_mean"]
    cells = [next(iter(table.cells.values())) for table in tables.make_tables(found)[1:]]
    value = fedmpi.load_result(runs[0]).values
    assert [cell.mean for cell in cells] == pytest.approx(
        [100 * value["auc_mean"], 100 * value["calibration_error_mean"], value["share_right_mean"]])
    assert measure_names.find_factor("accuracy_variance") == 1e4 and measure_names.find_factor("auc_undefined") == 1


def test_the_page_is_the_same_column_with_and_without_them(bench, runs):
    """Runs that differ only in further measures count as the same, and a run may continue with other ones."""
    with pytest.raises(BadInput, match="the same settings and seed"):
        results.collect_folder_results([*runs])
    assert bench.lead("without", "rounds=3", "evaluate.measures=[auc]", resume="auto") == 0
    history = read_history(runs[1] / "history.h5")
    assert np.isnan(history["auc"][:2]).all() and np.isfinite(history["auc"][2]).any()


def test_own_code_may_have_other_measures_when_a_run_goes_on(bench, monkeypatch, capsys):
    """Measures change no result, so their files are no change of the run's code; a change of its other code is one."""
    write(bench.folder, {"mine_of_run.py": OWN, "mine_of_method.py": METHOD})
    monkeypatch.chdir(bench.folder)
    own = "method=mine_of_method:Mine"
    assert bench.lead("own", own, "rounds=1") == 0
    for rounds, asked in ((2, "['mine_of_run:share_right']"), (3, "[]")):
        assert bench.lead("own", own, f"rounds={rounds}", f"evaluate.measures={asked}", resume="auto") == 0
    assert "accepted_code_changes" not in bench.result("own")
    assert bench.lead("none", "rounds=1") == bench.lead("none", "rounds=2", ASKED, resume="auto") == 0
    assert "own code" not in "".join(capsys.readouterr())
    snapshot = SimpleNamespace(extra={"own_code": {"method": "1", "measure": "2"}}, round=3,
                               config={"evaluate": {"measures": ["measure:f"]}})
    assert decision.accept_code(snapshot, {"method": "1"}, False, resolve({})) == ([], [])
    with pytest.raises(BadInput, match=r"since the checkpoint of round 3: method \(was 1, is 9\); put back"):
        decision.accept_code(snapshot, {"method": "9"}, False, resolve({}))
    # nor may other measures hide that a module of the method has come or gone
    snapshot.config = {"evaluate": {"measures": ["auc"]}}
    with pytest.raises(BadInput, match="measure .was 2, is not part of it any more"):
        decision.accept_code(snapshot, {"method": "1"}, False, resolve({}))
    with pytest.raises(BadInput, match="other .was not part of it, is 7"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(decision, "fingerprint_code", lambda config, measures: {"method": "1", "other": "7"})
        decision.accept_code(snapshot, {"method": "1", "measure": "2", "other": "7"}, False, resolve({}))
    # with the same measures a module that is gone is a change
    snapshot.config = {"evaluate": {"measures": []}}
    with pytest.raises(BadInput, match="measure .was 2, is not part of it any more"):
        decision.accept_code(snapshot, {"method": "1"}, False, resolve({}))


def test_what_cannot_be_imported_is_refused_with_code_2(bench, capsys):
    assert bench.lead("refused", "evaluate.measures=['mine_not_there:f']") == 2
    assert "measure 'mine_not_there:f': cannot import mine_not_there" in capsys.readouterr().err
    assert not bench.out("refused").exists()
